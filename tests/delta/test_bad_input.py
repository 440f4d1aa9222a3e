"""What is wrong with a pair: one clear error each, exit code 2, nothing written."""

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from ablations.delta.profile import read_changes
from layerswap_method.deltas.pair import mean_feature_mav
from layerswap_method.errors import InputError
from tests.delta.experts import fine_tuned, pair_of
from tests.standins.zoo import make_model

FILE = "model.safetensors"
NAME = "model.layers.3.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model("llama", tmp_path_factory.mktemp("base") / "base", 1, dtype=torch.float32)


@pytest.fixture
def expert(base, tmp_path):
    return fine_tuned(base, tmp_path / "expert", 2)


def refused(expert, base, out, *parts):
    """Run the command and return its message; nothing may have been written."""
    call = ["delta", str(expert), "--base", str(base), "--out", str(out)]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 2, result.output
    message = " ".join(result.output.split())
    assert all(part in message for part in parts), message
    assert message.count("Error:") == 1
    assert not out.exists()
    return message


def edit_file(folder, edit):
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / FILE).items()}
    save_file(edit(tensors), folder / FILE, {"format": "pt"})
    return folder


def test_a_base_that_is_not_the_base(base, tmp_path):
    other = make_model("llama", tmp_path / "other", 5)
    said = "base is not the base of other: ||delta|| / ||weights||"
    told = "give the checkpoint that it was trained from"
    message = refused(other, base, tmp_path / "out", said, told)
    (ratio,) = [word for word in message.split() if word.startswith("1.")]
    assert float(ratio) == pytest.approx(2**0.5, abs=0.1)


def test_a_file_that_shrinks_while_it_is_read(base, expert):
    pair = pair_of(expert, base)
    stamp = (expert / FILE).stat().st_mtime_ns
    content = (expert / FILE).read_bytes()
    (expert / FILE).write_bytes(content[:-10])
    with pytest.raises(InputError, match="were rewritten while they were in use"):
        mean_feature_mav(pair)
    os.utime(expert / FILE, ns=(stamp, stamp))
    with pytest.raises(InputError, match="were rewritten while they were in use"):
        mean_feature_mav(pair)
    with pytest.raises(InputError, match=r"damaged .* download or copy it again"):
        pair_of(expert, base)
    (expert / FILE).unlink()
    with pytest.raises(InputError, match="the weights are gone"):
        mean_feature_mav(pair)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["expert", "base"])
def test_weights_that_are_no_numbers(value, side, base, expert, tmp_path):
    sides = {"expert": expert, "base": Path(shutil.copytree(base, tmp_path / "base"))}

    def spoil(tensors):
        tensors[NAME][3, 4] = tensors[NAME][20, 2] = value
        return tensors

    edit_file(sides[side], spoil)
    said = f"{side}: 2 of 384 values of {NAME} are NaN or infinite"
    refused(sides["expert"], sides["base"], tmp_path / "out", said)
    pair = pair_of(sides["expert"], sides["base"])
    for read in (mean_feature_mav, lambda pair: read_changes(pair, pair.names)):
        with pytest.raises(InputError, match=said):
            read(pair)
        # Though the error keeps its frames alive.
        assert not [thread.name for thread in threading.enumerate() if "Pool" in thread.name]


def test_places_where_nothing_is(base, expert, tmp_path):
    gone = tmp_path / "gone"
    refused(gone, base, tmp_path / "out", "gone: no such folder")
    refused(expert, gone, tmp_path / "out", "gone: no such folder")
    refused(f"{expert}+{base}", base, tmp_path / "out", "has no adapter_config.json")


def test_what_was_there_stays_when_a_run_fails(base, expert, tmp_path):
    out = tmp_path / "out"
    command = ["delta", str(expert), "--base", str(base), "--out", str(out)]
    assert CliRunner().invoke(main, command).exit_code == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert "delta.csv" in before
    edit_file(expert, lambda tensors: {**tensors, NAME: tensors[NAME] * float("nan")})
    assert CliRunner().invoke(main, command).exit_code == 2
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
