"""Where a merge is written: whole or not at all, and nothing of the user's is lost."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import layerswap_method
from layerswap_method import output
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.output import check_output, output_folder, temporary_output
from tests.mergekit_plugin.conftest import VOCAB
from tests.standins.merging import merge, roles
from tests.standins.oracle import Swap, assert_same, expected, stored
from tests.standins.tokenizers import save_word_tokenizer, words
from tests.waiting import wait_until


def write_model(folder, *names, text=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(text or name)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "over an earlier merge"])
def test_a_folder_appears_whole_and_can_be_read_by_others(is_there, tmp_path):
    out = tmp_path / "a" / "out"
    if is_there:
        write_model(out, "mergekit_config.yml")
    before = os.umask(0o027)
    try:
        with temporary_output(out) as folder:
            assert folder.name == "out"
            save_file({"tensor": torch.zeros(1)}, folder / "model.safetensors")
            assert not (out / "model.safetensors").exists()
    finally:
        os.umask(before)
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o640
    assert names_in(out.parent) == ["out"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing(error, tmp_path):
    def fail():
        with temporary_output(tmp_path / "out") as folder:
            write_model(folder, "config.json")
            raise error

    with pytest.raises(error):
        fail()
    assert names_in(tmp_path) == []


OLD = ("mergekit_config.yml", "model.safetensors", "chat_template.jinja", "notes.txt")
NEW = ("model-00001-of-00001.safetensors", "config.json", "mergekit_config.yml")


@pytest.mark.parametrize("kind", ["folder", "link", "current"])
def test_an_earlier_merge_is_replaced_and_other_files_stay(kind, tmp_path, monkeypatch):
    place = tmp_path / "disk" / "merge"
    write_model(place, *OLD)
    out = place
    if kind == "link":
        (tmp_path / "link").symlink_to(place)
        out = tmp_path / "link"
    elif kind == "current":
        monkeypatch.chdir(place)
        out = output_folder("../merge/.")
    with temporary_output(out) as folder:
        write_model(folder, *NEW)
    assert names_in(place) == sorted([*NEW, "notes.txt"])
    assert names_in(place.parent) == ["merge"]
    assert out.is_symlink() == (kind == "link")


@pytest.mark.parametrize("exchanged_whole", [True, False])
def test_a_move_that_breaks_at_any_step_leaves_the_old_or_the_new_one(
    exchanged_whole, tmp_path, monkeypatch
):
    """And the new one, which took hours, is never thrown away."""
    original, steps = Path.replace, 0
    monkeypatch.setattr(output, "_can_be_renamed", lambda folder: exchanged_whole)
    while True:
        out, left = tmp_path / str(steps) / "out", steps
        write_model(out, *OLD, text="old")

        def breaking(self, target):
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(5, "Input/output error")
            return original(self, target)

        failure = None
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", breaking)
                with temporary_output(out) as folder:
                    write_model(folder, *NEW, text="new")
        except LayerSwapError as error:
            failure = error
        if failure is not None:
            assert failure.exit_code == 1
            named = Path(failure.message.rpartition(" in ")[2])
            olds = named if "cannot be moved back" in failure.message else out
            whole = out if olds is named else named
            assert {name: (whole / name).read_text() for name in NEW} == dict.fromkeys(NEW, "new")
            assert {path.name for path in olds.iterdir() if path.is_file()} == set(OLD)
        else:
            assert {name: (out / name).read_text() for name in NEW} == dict.fromkeys(NEW, "new")
            assert "model.safetensors" not in names_in(out)
            assert (out / "notes.txt").read_text() == "old"
            if left >= 0:
                break
        steps += 1
        assert steps < 30
    assert steps >= 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda out: out.symlink_to(out.parent / "nowhere"), "is a broken link"),
        (lambda out: out.write_text("mine"), "is a file"),
        (lambda out: write_model(out, "model.safetensors"), "files that no merge has written"),
        (lambda out: write_model(out, "notes.txt"), "files that no merge has written"),
    ],
)
def test_places_that_are_no_output(make, message, tmp_path):
    out = tmp_path / "out"
    make(out)
    for use in (lambda: check_output(out, ()), lambda: temporary_output(out).__enter__()):
        with pytest.raises(InputError, match=message):
            use()


def test_paths_that_cannot_be_outputs(tmp_path):
    with pytest.raises(InputError, match="the output path is empty"):
        output_folder(" ")
    with pytest.raises(InputError, match="is one of the merge's inputs"):
        check_output(tmp_path / "a", [tmp_path / "b" / ".." / "a"])
    with pytest.raises(InputError, match="is inside"):
        check_output(tmp_path / "a", [tmp_path])
    with pytest.raises(InputError, match="File name too long; give another"):
        check_output(tmp_path / ("x" * 300), [])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be made|Not a directory"):
        temporary_output(tmp_path / "file" / "out").__enter__()


def test_what_a_killed_merge_left_is_named_and_put_back(tmp_path, caplog):
    write_model(tmp_path / ".layerswap-x.partial" / "out", "model.safetensors")
    with caplog.at_level(logging.WARNING, "layerswap"):
        for name, is_named in (("out", True), ("other", False)):
            caplog.clear()
            with temporary_output(tmp_path / name) as folder:
                write_model(folder, "config.json")
            belongs = ".layerswap-x.partial belongs to a merge that runs or was killed"
            assert (belongs in caplog.text) == is_named
    moved = tmp_path / ".layerswap-key.partial" / "replaced"
    write_model(moved, *OLD)
    with pytest.raises(KeyError), temporary_output(tmp_path / "third", "key"):
        raise KeyError
    assert names_in(tmp_path / "third") == sorted(OLD)


def test_sigterm_unwinds(tmp_path):
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
        env={**os.environ, "PYTHONPATH": str(Path(layerswap_method.__file__).parents[1])},
    )
    with process.stdout:
        assert process.stdout.readline() == "inside\n"
        assert len(names_in(tmp_path)) == 1
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None)
    assert process.returncode == 128 + signal.SIGTERM
    assert names_in(tmp_path) == []
    before = signal.getsignal(signal.SIGTERM)
    with temporary_output(tmp_path / "out"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


SWAP = Swap(8, b=2, u=1, t_b=1, t_u=1)


@pytest.mark.parametrize("first", ["one file", "many shards"])
def test_what_a_merge_writes_and_what_of_an_earlier_one_survives(first, experts, loads, tmp_path):
    out, sizes = tmp_path / "my-merge", {"one file": 10**9, "many shards": 2000}
    merge(experts.recipe(), out, out_shard_size=sizes.pop(first))
    save_word_tokenizer(out, words(VOCAB))
    write_model(out / "notes", "mine.txt")
    document = experts.recipe(parameters=SWAP.parameters())
    document["models"][1]["parameters"]["weight"] = 2
    merge(document, out, out_shard_size=sizes.popitem()[1])
    # transformers reads model.safetensors and never looks at new shards beside it.
    assert (out / "model.safetensors").is_file() == (first == "many shards")
    assert (out / "model.safetensors.index.json").is_file() == (first == "one file")
    assert_same(stored(out), expected(SWAP, stored(experts.task), stored(experts.language)))
    assert (out / "tokenizer.json").is_file()
    assert (out / "notes" / "mine.txt").is_file()
    loads(out)
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record.pop("layerswap_version") == layerswap_method.__version__
    assert SWAP.parameters().items() <= record.pop("parameters").items()
    assert record == {
        "schema_version": 1,
        "merge_method": "layer_swap",
        "num_layers": 8,
        "layers": [SWAP.of_layer(layer) for layer in range(8)],
        "models": [
            {"model": str(path), "role": role, "weight": float(weight)}
            for (role, path), weight in zip(roles(experts).items(), (1, 2), strict=True)
        ],
        "base_model": str(experts.base),
    }
    card = (out / "README.md").read_text()
    for said in ("# my-merge", "Layer Swapping", "8 layers: language 0-1,7", "bottom_layers: 2"):
        assert said in card
    assert "partial" not in card
    assert "weight: 2" in (out / "mergekit_config.yml").read_text()
