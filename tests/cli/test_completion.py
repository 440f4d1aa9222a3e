"""Completion in a shell: commands, options, shipped names."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.cli import COMMANDS

ROOT = Path(__file__).parents[2]
RUN = "ablations/results/layer_count"
OWN = ("--include-path", "FOLDER")


def completed(*words):
    """Return what bash would be told when the last of `words` is completed."""
    environment = {
        **os.environ,
        "_LAYERSWAP_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("layerswap", *words)),
        "COMP_CWORD": str(len(words)),
    }
    code = "from ablations.cli import main; main(prog_name='layerswap')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands():
    assert {f"plain,{name}" for name in COMMANDS} == set(completed(""))
    assert completed("qui") == ["plain,quickstart"]
    assert completed("pocket", "b") == ["plain,build"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "layer_"), ["file,layer_", "plain,layer_count"]),
        (("run", "layer_count", "--experts", "smo"), ["file,smo", "plain,smol"]),
        (("plan", "pocket/layer_sw"), ["file,pocket/layer_sw", "plain,pocket/layer_swap"]),
        (
            ("check", "a.yml", "pocket/layer_sw"),
            ["file,pocket/layer_sw", "plain,pocket/layer_swap"],
        ),
        (("recipes", "copy", "pocket/layer_sw"), ["plain,pocket/layer_swap"]),
        (("train", "joint_"), ["file,joint_", "plain,joint_swahili"]),
        (("run", "--dry"), ["plain,--dry-run"]),
        (("evaluate", "my-mod"), ["file,my-mod"]),
        (("answers", "runs/my"), ["file,runs/my"]),
        (("evaluate", "m", "--benchmarks", "mgsm,bel"), ["plain,mgsm,belebele"]),
        (("evaluate", "m", "--tasks", "xcopa_"), ["plain,xcopa_{lang}"]),
        (("evaluate", "m", "--tasks", "a,layerswap_mbpp_t"), ["plain,a,layerswap_mbpp_te"]),
        (("evaluate", "m", "--languages", "sw,span"), ["plain,sw,spanish"]),
        (("tasks", "--language", "tel"), ["plain,telugu"]),
        (("evaluate", "m", *OWN, "--tasks", "my_ta"), ["plain,my_task"]),
        (("answers", RUN, ":", "base", "--task", "p"), ["plain,pocket_math_sw"]),
        (("answers", RUN, ":", "base", "--against", "TI"), ["file,TI", "plain,TIES"]),
        (("run", "x", "--qui"), ["plain,--quiet"]),
        (("nonsense", "x"), []),
        (("answers", RUN, ":", "so"), ["plain,soup"]),
        (("compare", f"{RUN}:base", RUN, ":"), ["plain,base", r"plain,task\\", "expert"]),
        (("answers", "x", "--against", RUN, ":", "T"), ["plain,TIES"]),
        (("run", "x", "--set", "limit", "=", "5", "--dry"), ["plain,--dry-run"]),
    ],
)
def test_bash_completes_names_and_options(words, expected, tmp_path):
    (tmp_path / "mine.yaml").write_text("task: my_task\n")
    words = [shlex.quote(str(tmp_path)) if word == "FOLDER" else word for word in words]
    assert completed(*words)[: len(expected)] == expected


def test_bash_fills_in_the_only_name_and_else_a_file(tmp_path):
    """The script that the page has people evaluate, in a bash that completes."""
    (tmp_path / "study_of_mine.yml").touch()
    (tmp_path / "my run").symlink_to(ROOT / RUN)
    program = tmp_path / "layerswap"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ablations.cli import main; "
    command = shlex.join([sys.executable, "-c", f"{code}main(prog_name='layerswap')"])
    program.write_text(f"#!/bin/sh\nexec {command}\n")  # `#!` takes no path with a space
    program.chmod(0o755)
    script = """
eval "$(_LAYERSWAP_COMPLETE=bash_source layerswap)"
complete -p layerswap
COMP_WORDS=(layerswap run layer_) COMP_CWORD=2
compopt() { :; }
_layerswap_completion layerswap
echo "${COMPREPLY[@]}"
COMP_WORDS=(layerswap answers 'my\\ run' : task) COMP_CWORD=4 COMPREPLY=()
_layerswap_completion layerswap
echo "${COMPREPLY[@]}"
"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "--norc", "-c", script]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _layerswap_completion layerswap",
        "layer_count",
        r"task\ expert",
    ]
