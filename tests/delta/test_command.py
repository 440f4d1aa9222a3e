"""`layerswap delta`: what is written and told."""

import csv
import importlib.util
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ablations.cli import main
from ablations.delta.analysis import label_all
from layerswap_method.errors import InputError
from tests.delta import by_hand
from tests.delta.experts import fine_tuned
from tests.standins.zoo import LAYERS, make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    base = make_model("llama", folder / "base", 1, dtype=torch.float32)
    fine_tuned(base, folder / "math", 2, changes=lambda name: "norm" not in name)
    fine_tuned(base, folder / "swahili", 3, changes=lambda name: ".layers.2." in name)
    fine_tuned(folder / "math", folder / "more", 4, scale=3e-4)
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


def test_several_experts_are_compared(models, tmp_path):
    names = ("math", "swahili", "more")
    result = run(*(models / n for n in names), "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert files(tmp_path) == {
        *(f"{name}/delta.csv" for name in names),
        *("comparison.csv", "delta.png", "delta.svg"),
    }
    theirs = by_hand.read(models / "base")
    delta = {
        name: {key: values - theirs[key] for key, values in by_hand.read(models / name).items()}
        for name in names
    }

    def vector(name, part):
        return np.concatenate([v.ravel() for key, v in delta[name].items() if part in key])

    def mavs(name, part):
        chosen = [k for k, v in delta[name].items() if part in k and ".layers." in k and v.ndim > 1]
        return np.concatenate([by_hand.rows(key, delta[name][key], "llama") for key in chosen])

    table = read_table(tmp_path / "comparison.csv")
    assert len(table) == 3 * (1 + LAYERS)
    for row in table:
        pair, layer = (row["first"], row["second"]), row["layer"]
        part = f".layers.{layer}." if layer else ""
        if "swahili" in pair and layer not in ("", "2"):
            assert row["cosine"] == row["correlation"] == ""
            continue
        one, other = (vector(name, part) for name in pair)
        cosine = one @ other / math.sqrt((one @ one) * (other @ other))
        assert float(row["cosine"]) == pytest.approx(cosine, abs=1e-6)
        wanted = np.corrcoef(*(mavs(name, part) for name in pair))[0, 1]
        assert float(row["correlation"]) == pytest.approx(wanted, abs=1e-5)
    (whole,) = [r for r in table if (r["first"], r["second"], r["layer"]) == ("math", "more", "")]
    assert float(whole["cosine"]) == pytest.approx(0.96, abs=0.02)
    told = f"math and more: cosine of their changes {float(whole['cosine']):.3f}"
    assert told in result.output


def test_a_published_expert_beside_and_alone(models, tmp_path):
    wanted = ("--reference", "swahili expert #1", "--out", tmp_path)
    assert run(models / "math", "--base", models / "base", *wanted).exit_code == 0
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
    result = run(models / "math", "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert files(tmp_path) == {"delta.csv"}
    assert "pip install 'layerswap[plot]'" in result.stderr
    alone = run("--reference", "Swahili expert #1", "--out", tmp_path)
    assert alone.exit_code == 1
    assert "pip install 'layerswap[plot]'" in alone.output


def test_an_expert_equal_to_its_base_is_told(models, tmp_path):
    result = run(models / "base", "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Warning: base equals the base: every delta is 0" in result.stderr
    assert {row["mav_max"] for row in read_table(tmp_path / "delta.csv")} == {"0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give an EXPERT and its --base, or a published one with"),
        (("somewhere",), "the change is measured from a base: give the base model with --base"),
        (("a", "a/", "--base", "b"), "a is named twice"),
        (("a", "--base", "b", "--threshold", "inf"), "Invalid value for '--threshold'"),
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
    assert label_all(["runs/pocket/task", "./language/"]) == ["task", "language"]
    assert label_all(["x/a/model", "x/b/model"]) == ["a/model", "b/model"]
    assert label_all(["org/base+runs/adapter", "org/base"]) == ["adapter", "base"]
    with pytest.raises(InputError, match="x is named twice"):
        label_all(["x", "y", "x"])


def test_a_file_in_the_way_is_told_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("mine")
    result = run(tmp_path / "no", "--base", tmp_path / "no", "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is not a folder" in result.output
