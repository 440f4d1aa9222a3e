"""`layerswap delta`: what is written and told; what is wrong is one clear error."""

import csv
import importlib.util
import math
import shutil
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from ablations.delta.analysis import label_all
from ablations.delta.profile import read_changes
from layerswap_method.deltas.pair import mean_feature_mav
from layerswap_method.errors import InputError
from tests.delta import by_hand
from tests.delta.experts import fine_tuned, pair_of
from tests.standins.zoo import LAYERS, make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base = make_model("llama", folder / "base", 1, dtype=torch.float32)
    fine_tuned(base, folder / "math", 2, changes=lambda name: "norm" not in name)
    fine_tuned(base, folder / "swahili", 3, changes=lambda name: ".layers.2." in name)
    return folder


def run(*arguments):
    return CliRunner().invoke(main, ["delta", *map(str, arguments)])


def files(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def read_table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_one_expert_is_a_row_a_tensor_and_a_heatmap(models, tmp_path):
    result = run(
        *(models / "swahili", "--base", models / "base", "--out", tmp_path, "--threshold", "8e-4")
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert files(tmp_path) == {"delta.csv", "delta.png", "delta.svg"}
    assert "have a MAV above 0.0008" in result.output
    assert str(tmp_path / "delta.svg") in result.output
    ours, theirs = by_hand.read(models / "swahili"), by_hand.read(models / "base")
    rows = read_table(tmp_path / "delta.csv")
    assert {row["name"] for row in rows} == set(theirs)
    for row in rows:
        name = row["name"]
        wanted = by_hand.statistics(name, ours[name], theirs[name], "llama", 8e-4)
        for key, value in wanted.items():
            assert float(row[key]) == pytest.approx(value, rel=2e-5, abs=1e-9), (name, key)
        assert row["layer"] == (name.split(".")[2] if ".layers." in name else "")
    # Only layer 2 changed: all of the change is its.
    shares = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert shares == [[str(n), "1.0000" if n == 2 else "0.0000"] for n in range(LAYERS)]


def test_several_experts_and_a_published_one_have_one_figure(models, tmp_path):
    wanted = ("--reference", "swahili expert #1", "--out", tmp_path)
    experts = (models / "math", models / "swahili")
    assert run(*experts, "--base", models / "base", *wanted).exit_code == 0
    assert files(tmp_path) == {"math/delta.csv", "swahili/delta.csv", "delta.png", "delta.svg"}
    svg = (tmp_path / "delta.svg").read_text(encoding="utf-8")
    assert "<!-- math -->" in svg
    assert "<!-- Swahili expert #1 -->" in svg
    assert run(*wanted).exit_code == 0
    assert "reference-swahili-expert-1.svg" in files(tmp_path)


def test_without_matplotlib_the_numbers_are_written(models, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        *(importlib.util, "find_spec"),
        lambda name, package=None: None if name == "matplotlib" else find(name, package),
    )
    result = run(models / "base", "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert files(tmp_path) == {"delta.csv"}
    assert "Warning: base equals the base: every delta is 0" in result.stderr
    assert "pip install 'layerswap[plot]'" in result.stderr
    alone = run("--reference", "Swahili expert #1", "--out", tmp_path)
    assert alone.exit_code == 1
    assert "pip install 'layerswap[plot]'" in alone.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give an EXPERT and its --base, or a published one with"),
        (("somewhere",), "the change is measured from a base: give the base model with --base"),
        (("a", "a/", "--base", "b"), "a is named twice"),
        (("a", "--base", "b", "--threshold", "-1"), "x>=0"),
        (("--reference", "Swahili expert #1", "--base", "b"), "are of an EXPERT"),
        (("a", "--base", "b", "--reference", "Swahilli expert #1"), "did you mean 'Swahili exp"),
    ],
)
def test_what_the_command_line_lacks(arguments, message, tmp_path):
    result = run(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert result.exit_code == 2
    assert message in result.output


def test_experts_have_short_names_of_their_own():
    assert label_all(["x/a/model", "x/b/model"]) == ["a/model", "b/model"]
    assert label_all(["org/base+runs/adapter", "org/base"]) == ["adapter", "base"]


FILE = "model.safetensors"
NAME = "model.layers.3.mlp.up_proj.weight"


@pytest.fixture
def base(models):
    return models / "base"


@pytest.fixture
def expert(base, tmp_path):
    return fine_tuned(base, tmp_path / "expert", 2)


def refused(expert, base, out, *parts):
    """Fail unless the command says all parts in one error and writes nothing."""
    result = run(expert, "--base", base, "--out", out)
    assert result.exit_code == 2, result.output
    message = " ".join(result.output.split())
    assert all(part in message for part in parts), message
    assert message.count("Error:") == 1
    assert not out.exists()


def spoil(folder, value):
    """Put a value into two places of a tensor."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / FILE).items()}
    tensors[NAME][3, 4] = tensors[NAME][20, 2] = value
    save_file(tensors, folder / FILE, {"format": "pt"})


def test_a_base_that_is_not_the_base(base, tmp_path):
    other = make_model("llama", tmp_path / "other", 5)
    text = "base is not the base of other: ||delta|| / ||weights||"
    refused(other, base, tmp_path / "out", text, "that it was trained from")


def test_a_file_that_shrinks_while_it_is_read(base, expert):
    pair = pair_of(expert, base)
    (expert / FILE).write_bytes((expert / FILE).read_bytes()[:-10])
    with pytest.raises(InputError, match="were rewritten while they were in use"):
        mean_feature_mav(pair)
    with pytest.raises(InputError, match=r"damaged .* download or copy it again"):
        pair_of(expert, base)
    (expert / FILE).unlink()
    with pytest.raises(InputError, match="the weights are gone"):
        mean_feature_mav(pair)


@pytest.mark.parametrize(("side", "value"), [("expert", math.nan), ("base", math.inf)])
def test_weights_that_are_no_numbers(side, value, base, expert, tmp_path):
    sides = {"expert": expert, "base": Path(shutil.copytree(base, tmp_path / "base"))}
    spoil(sides[side], value)
    said = f"{side}: 2 of 384 values of {NAME} are NaN or infinite"
    refused(sides["expert"], sides["base"], tmp_path / "out", said)
    pair = pair_of(sides["expert"], sides["base"])
    for read in (mean_feature_mav, read_changes):
        with pytest.raises(InputError, match=said):
            read(pair)
        # Though the error keeps its frames alive.
        assert not [thread.name for thread in threading.enumerate() if "Pool" in thread.name]


def test_places_where_nothing_can_be_read_or_written(base, expert, tmp_path):
    gone = tmp_path / "gone"
    refused(gone, base, tmp_path / "out", "gone: no such folder")
    refused(expert, gone, tmp_path / "out", "gone: no such folder")
    refused(f"{expert}+{base}", base, tmp_path / "out", "has no adapter_config.json")
    (tmp_path / "file").write_text("mine")
    refused(gone, gone, tmp_path / "file/out", f"{tmp_path / 'file'} is not a folder")
