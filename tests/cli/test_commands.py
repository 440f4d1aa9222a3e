"""What holds for every command, and what is imported where: nothing heavy for help."""

import importlib.metadata
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import click
import pytest

from layerswap_method import __version__
from layerswap_method.errors import InputError
from tests.standins.command import layerswap
from tests.standins.imports import imports

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "mergekit",
    "lm_eval",
    "vllm",
    "numpy",
    "scipy",
    "pydantic",
    "datasets",
    "sacrebleu",
    "ray",
    "matplotlib",
    "peft",
    "huggingface_hub",
    "jinja2",
    "tabulate",
}
ONE_HOME = {"mergekit", "vllm", "lm_eval", "ray", "matplotlib", "peft", "jinja2", "tabulate"}

WALK = """
import json, sys
import click
from ablations.cli import main

def walk(command, path):
    print(json.dumps([path, command.get_help(click.Context(command, info_name=path[-1]))]))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            walk(command.get_command(context, name), [*path, name])

walk(main, ["layerswap"])
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_no_help_imports_anything_heavy():
    command = [sys.executable, "-c", WALK]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    *pages, modules = map(json.loads, done.stdout.splitlines())
    commands = {" ".join(path) for path, _ in pages}
    assert {"layerswap", "layerswap pocket build", "layerswap quickstart"} <= commands
    assert "click" in modules
    assert not HEAVY & set(modules)
    assert all("Usage:" in page for _, page in pages)


def test_each_heavy_package_has_one_home():
    homes = defaultdict(set)
    for package in ("layerswap", "layerswap_method", "ablations"):
        for path in (ROOT / package).rglob("*.py"):
            for name in ONE_HOME.intersection(each.split(".")[0] for each in imports(path)):
                homes[name].add(path.relative_to(ROOT).as_posix())
    asking = {path.rpartition("/")[0] for path in homes.pop("lm_eval")}
    assert asking == {"ablations/engines", "ablations/requests", "ablations/tasks"}
    assert {path.split("/")[1] for path in homes.pop("mergekit")} == {"mergekit_plugin"}
    # Adapters are loaded by the one door to from_pretrained, and made where they are trained.
    assert homes.pop("peft") == {
        "ablations/models/load.py",
        "ablations/train/apply_regime.py",
        "ablations/train/side_adapters.py",
    }
    assert "matplotlib" in homes
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_an_unknown_command_exits_2_and_names_the_nearest():
    result = layerswap("quikstart")
    assert (result.exit_code, "no command 'quikstart'; did you" in result.output) == (2, True)


def test_a_name_that_is_like_no_other_is_not_answered_with_one():
    result = layerswap("frobnicate")
    assert (result.exit_code, "no command 'frobnicate'\n" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "/out/run.json"), "/out/run.json: No space left"),
        (OSError(36, "File name too long"), "Error: File name too long"),
        (InputError("no model 'a\x1b]0;title\x07'"), "no model 'a\\x1b]0;title\\x07'"),
    ],
)
def test_what_a_system_or_a_name_says_is_one_line_without_a_traceback(monkeypatch, error, said):
    @click.command()
    def tasks():
        raise error

    monkeypatch.setattr("ablations.cli.evaluation.tasks", tasks)
    result = layerswap("tasks")
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert result.output.count("\n") == 1


def test_names_in_what_is_printed_give_a_terminal_no_orders(tmp_path):
    recipe = tmp_path / "r.yml"
    recipe.write_text('merge_method: linear\nmodels: [{model: "a\\u001b[2Jb"}]\ndtype: float32\n')
    result = layerswap("check", recipe)
    assert "\x1b" not in result.output
    assert "\\x1b[2J" in result.output


def test_version_says_what_is_installed():
    lines = layerswap("--version").output.splitlines()
    assert lines[0] == f"layerswap {__version__}"
    assert f"mergekit {importlib.metadata.version('mergekit')}" in lines


def test_a_place_may_begin_at_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    layerswap("init", "study", "~/mine.yml")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yml"]
