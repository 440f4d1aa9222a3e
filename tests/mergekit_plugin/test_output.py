"""Where a merge is written: whole or not at all, never over an input."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.output import check_output, output_folder, temporary_output
from tests.mergekit_plugin.conftest import Experts, Merge
from tests.waiting import wait_until


def write_model(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with temporary_output(tmp_path / "a" / "out") as folder:
        assert folder.name == "out"
        write_model(folder, "config.json")
        assert not (tmp_path / "a" / "out").exists()
    assert leftovers(tmp_path / "a") == ["out"]


@pytest.mark.parametrize("there", [False, True], ids=["new", "over an earlier merge"])
def test_weights_can_be_read_by_whoever_the_umask_lets(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "out"
    if there:
        write_model(out, "mergekit_config.yml")
    before = os.umask(0o027)
    try:
        with temporary_output(out) as folder:
            save_file({"tensor": torch.zeros(1)}, folder / "model.safetensors")
            assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with temporary_output(tmp_path / "out") as folder:
            write_model(folder, "config.json")
            raise error

    with pytest.raises(error):
        fail()
    assert leftovers(tmp_path) == []


def test_an_earlier_merge_is_renewed_and_other_files_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_model(out, "mergekit_config.yml", "model.safetensors", "chat_template.jinja", "notes.txt")
    with temporary_output(out) as folder:
        write_model(folder, "model-00001-of-00001.safetensors", "config.json")
    assert leftovers(out) == ["config.json", "model-00001-of-00001.safetensors", "notes.txt"]


@pytest.mark.parametrize("here", [".", "./", "../here"])
def test_the_current_folder_is_an_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with temporary_output(output_folder(here)) as folder:
        write_model(folder, "config.json")
    assert leftovers(tmp_path / "here") == ["config.json"]
    assert leftovers(tmp_path) == ["here"]


def test_paths_that_cannot_be_outputs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the output path is empty"):
        output_folder(" ")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is a broken link"):
        check_output(tmp_path / "link", ())
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(InputError, match="cannot be made"),
        temporary_output(tmp_path / "file" / "out"),
    ):
        pytest.fail("entered")
    write_model(tmp_path / "theirs", "model.safetensors")
    with pytest.raises(InputError, match="has weights that no merge has written"):
        check_output(tmp_path / "theirs", ())
    with pytest.raises(InputError, match="is one of the merge's inputs"):
        check_output(tmp_path / "a", [tmp_path / "b" / ".." / "a"])


def test_files_that_cannot_be_moved_are_a_failure(tmp_path: Path) -> None:
    (tmp_path / "out" / "config.json").mkdir(parents=True)
    with (
        pytest.raises(LayerSwapError, match="cannot be moved there") as error,
        temporary_output(tmp_path / "out") as folder,
    ):
        write_model(folder, "config.json")
    assert error.value.exit_code == 1
    assert leftovers(tmp_path) == ["out"]


def test_what_a_killed_merge_left_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path / ".layerswap-x.partial" / "out", "model.safetensors")
    with caplog.at_level(logging.WARNING, "layerswap"), temporary_output(tmp_path / "out"):
        pass
    assert ".layerswap-x.partial belongs to a merge that runs or was killed" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "layerswap"), temporary_output(tmp_path / "other"):
        pass
    assert not caplog.text


def test_sigterm_unwinds(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from layerswap_method.output import temporary_output\n"
        "with temporary_output(pathlib.Path(sys.argv[1])):\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "inside\n"
        assert len(leftovers(tmp_path)) == 1
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None)
    assert process.returncode == 128 + signal.SIGTERM
    assert leftovers(tmp_path) == []


def test_the_signal_handler_is_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with temporary_output(tmp_path / "out"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat61"}, "dtype is 'bfloat61'; it must be one of bfloat16, float16"),
        ({"out_dtype": "half"}, "out_dtype is 'half'; it must be one of"),
        ({"chat_template": "chatlm"}, "did you mean 'chatml'?"),
        ({"parameters": {"bottom_layers": 99}}, "99 + 2 = 101 is more than the model's 8 layers"),
    ],
)
def test_settings_are_checked_before_checkpoints(
    experts: Experts, merge: Merge, changes: dict[str, Any], message: str
) -> None:
    result = merge(experts.recipe(**changes))
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_what_fails_inside_mergekit_is_one_message(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    root = shutil.copytree(experts.root, tmp_path / "damaged")
    for name in ("base", "task", "language"):
        (root / name / "tokenizer.json").write_text("{")  # it is there, and is none
    damaged = Experts(root, root / "base", root / "task", root / "language")
    result = merge(damaged.recipe(tokenizer={"source": "base"}))
    assert result.exit_code == 1, result.output
    assert result.output.startswith("Error: mergekit failed, and nothing was written: ")
    assert "add -v for the traceback" in result.output
    assert not result.folder.exists()
    assert leftovers(result.folder.parent) == []


def test_an_adapter_and_its_cache_are_inputs(experts: Experts, tmp_path: Path) -> None:
    from layerswap_method.mergekit_plugin.checks import input_paths
    from mergekit.common import ModelReference
    from mergekit.options import MergeOptions

    cache = tmp_path / "cache"
    cache.mkdir()
    reference = ModelReference.parse(f"{experts.base}+{experts.task}")
    found = input_paths([reference], MergeOptions(lora_merge_cache=str(cache)))
    assert found == [experts.base, experts.task, cache]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({}, "; the default is bottom_layers 5 and top_layers 2 at any depth; to swap less"),
        ({"bottom_layers": 5}, "; the default is top_layers 2 at any depth"),
        ({"placement": "layers", "language_layers": "0-6"}, "(the paper swaps 7 of 32)"),
        ({"bottom_layers": 3, "top_layers": 1}, None),
        ({"swap_modules": "mlp"}, None),
    ],
)
def test_a_swap_of_most_of_the_model_is_a_warning(
    parameters: dict[str, Any],
    says: str | None,
    experts: Experts,
    merge: Merge,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert merge(experts.recipe(parameters=parameters)).exit_code == 0
    warned = [r.message for r in caplog.records if r.name == "layerswap" and r.levelname[0] == "W"]
    assert len(warned) == (says is not None)
    if says is not None:
        assert warned[0].startswith("7 of the 8 layers come from the language expert")
        assert says in warned[0]
