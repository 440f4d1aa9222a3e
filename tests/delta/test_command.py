"""`layerswap delta`: what is written and told."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from ablations.cli import main
from ablations.delta.analysis import label_all
from ablations.delta.compare import Comparison
from ablations.delta.profile import DeltaProfile
from layerswap_method.errors import InputError
from tests.delta import by_hand
from tests.delta.experts import fine_tuned
from tests.standins.zoo import LAYERS, make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = make_model("llama", folder / "base", 1, dtype=torch.float32)
    fine_tuned(base, folder / "math", 2, changes=lambda name: "norm" not in name)
    fine_tuned(base, folder / "swahili", 3, changes=lambda name: ".layers.2." in name)
    fine_tuned(folder / "math", folder / "more", 4, scale=3e-4)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["delta", *map(str, arguments)])


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_one_expert(models: Path, tmp_path: Path) -> None:
    result = run(models / "math", "--base", models / "base", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "out") == {"delta.json", "delta.csv", "delta.png", "delta.svg"}
    profile = DeltaProfile.model_validate_json((tmp_path / "out" / "delta.json").read_text("utf-8"))
    assert f"have a MAV above {profile.threshold:.6g} (" in result.output
    assert "(the threshold of --quantile 0.125)" in result.output
    assert str(tmp_path / "out" / "delta.svg") in result.output
    assert result.stderr == ""


def test_the_table_is_layers_by_parameters(models: Path, tmp_path: Path) -> None:
    found = run(
        *(models / "swahili", "--base", models / "base", "--out", tmp_path),
        *("--threshold", "8e-4"),
    )
    assert found.exit_code == 0
    assert "have a MAV above 0.0008 (the threshold that was given)" in found.output
    text = (tmp_path / "delta.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["layer"] for row in rows] == [str(layer) for layer in range(LAYERS)]
    assert list(rows[0])[1:8] == [
        *(f"self_attn.{kind}_proj" for kind in "qkvo"),
        *(f"mlp.{kind}_proj" for kind in ("gate", "up", "down")),
    ]
    assert list(rows[0])[8:] == ["input_layernorm", "post_attention_layernorm"]
    ours, theirs = by_hand.read(models / "swahili"), by_hand.read(models / "base")
    for row in rows:
        for column in list(row)[1:]:
            name = f"model.layers.{row['layer']}.{column}.weight"
            mav = by_hand.rows(name, ours[name] - theirs[name], "llama")
            assert float(row[column]) == pytest.approx((mav > 8e-4).mean(), abs=1e-9)
    assert sum(float(value) for row in rows for value in list(row.values())[1:]) > 1


def test_several_experts_are_compared(models: Path, tmp_path: Path) -> None:
    names = ("math", "swahili", "more")
    result = run(*(models / n for n in names), "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    kinds = ("json", "csv", "png", "svg")
    assert files(tmp_path) == {
        *(f"{name}/delta.{kind}" for name in names for kind in kinds),
        *(f"comparison.{kind}" for kind in ("json", "png", "svg")),
        *("delta.png", "delta.svg"),
    }
    found = Comparison.model_validate_json((tmp_path / "comparison.json").read_text("utf-8"))
    assert [(pair.first, pair.second) for pair in found.pairs] == [
        ("math", "swahili"),
        ("math", "more"),
        ("swahili", "more"),
    ]
    theirs = by_hand.read(models / "base")
    delta = {
        name: {key: values - theirs[key] for key, values in by_hand.read(models / name).items()}
        for name in names
    }

    def cosine(one: str, other: str, part: str) -> float:
        first, second = (
            np.concatenate([values.ravel() for key, values in delta[name].items() if part in key])
            for name in (one, other)
        )
        return float(first @ second / math.sqrt((first @ first) * (second @ second)))

    def correlation(one: str, other: str, part: str) -> float:
        first, second = (
            np.concatenate(
                [
                    by_hand.rows(key, values, "llama")
                    for key, values in delta[name].items()
                    if part in key and values.ndim == 2
                ]
            )
            for name in (one, other)
        )
        return float(np.corrcoef(first, second)[0, 1])

    for pair in found.pairs:
        assert pair.cosine == pytest.approx(cosine(pair.first, pair.second, ""), abs=1e-6)
        for layer in range(LAYERS):
            part = f".layers.{layer}."
            if "swahili" in (pair.first, pair.second) and layer != 2:
                assert pair.layer_cosine[layer] is None
                assert pair.layer_correlation[layer] is None
                continue
            wanted = cosine(pair.first, pair.second, part)
            assert pair.layer_cosine[layer] == pytest.approx(wanted, abs=1e-6)
            wanted = correlation(pair.first, pair.second, part)
            assert pair.layer_correlation[layer] == pytest.approx(wanted, abs=1e-5)
    assert found.pairs[1].cosine == pytest.approx(0.96, abs=0.02)
    assert f"math and more: cosine of their changes {found.pairs[1].cosine:.3f}" in result.output


def test_a_published_expert_beside_and_alone(models: Path, tmp_path: Path) -> None:
    wanted = ("--reference", "swahili expert #1", "--out", tmp_path)
    beside = run(models / "math", "--base", models / "base", *wanted)
    assert beside.exit_code == 0, beside.output
    assert {"reference.png", "reference.svg"} <= files(tmp_path)
    assert "Spearman ρ = " in beside.output
    assert run(*wanted).exit_code == 0
    assert "reference-swahili-expert-1.svg" in files(tmp_path)


def test_an_unknown_published_expert_fails_before_anything_is_read(tmp_path: Path) -> None:
    result = run(
        *("gone", "--base", "gone", "--reference", "Swahilli expert #1", "--out", tmp_path / "out")
    )
    assert result.exit_code == 2
    assert "did you mean 'Swahili expert #1'?" in result.output
    assert not (tmp_path / "out").exists()


def test_a_published_expert_beside_another_architecture(tmp_path: Path) -> None:
    base = make_model("gpt2", tmp_path / "base", 1)
    out = tmp_path / "out"
    result = run(base, "--base", base, "--reference", "Swahili expert #1", "--out", out)
    assert result.exit_code == 2
    assert "have no parameter in common" in result.output
    assert not out.exists()


def test_without_matplotlib_the_numbers_are_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec

    def find_all_but_one(name: str, package: str | None = None) -> object:
        return None if name == "matplotlib" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_one)
    both = (models / "math", models / "swahili")
    result = run(*both, "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert files(tmp_path) == {
        *(f"{name}/delta.{kind}" for name in ("math", "swahili") for kind in ("json", "csv")),
        "comparison.json",
    }
    assert "pip install 'layerswap[plot]'" in result.stderr
    alone = run("--reference", "Swahili expert #1", "--out", tmp_path)
    assert alone.exit_code == 1
    assert "pip install 'layerswap[plot]'" in alone.output


def test_an_expert_equal_to_its_base_is_told(models: Path, tmp_path: Path) -> None:
    result = run(models / "base", "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Warning: base equals the base: every delta is 0" in result.stderr
    document = json.loads((tmp_path / "delta.json").read_text(encoding="utf-8"))
    assert document["threshold"] == 0
    assert document["mean_row_mav"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give an EXPERT and its --base, or a published one with"),
        (("somewhere",), "the change is measured from a base: give the base model with --base"),
        (("a", "a", "--base", "b"), "a is named twice"),
        (("a", "a/", "--base", "b"), "a is named twice"),
        (("a", "--base", "b", "--quantile", "1"), "0<x<1"),
        (("a", "--base", "b", "--quantile", "nan"), "Invalid value for '--quantile'"),
        (("a", "--base", "b", "--threshold", "inf"), "Invalid value for '--threshold'"),
        (("a", "--base", "b", "--threshold", "-1"), "x>=0"),
        (("a", "--base", "b", "--treshold", "1"), "No such option"),
        (("a", "--base", "b", "--threshold", "1", "--quantile", "0.1"), "not both"),
        (
            ("--reference", "Swahili expert #1", "--base", "b"),
            "--base without an EXPERT: add the expert to draw beside 'Swahili expert #1'",
        ),
        (
            ("--reference", "Swahili expert #1", "--threshold", "1", "--quantile", "0.1"),
            "--threshold and --quantile without an EXPERT",
        ),
    ],
)
def test_what_the_command_line_lacks(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert result.exit_code == 2
    assert message in result.output


def test_experts_have_short_names_of_their_own() -> None:
    assert label_all(["runs/pocket/task", "./language/"]) == ["task", "language"]
    assert label_all(["x/a/model", "x/b/model"]) == ["a/model", "b/model"]
    assert label_all(["org/base+runs/adapter", "org/base"]) == ["adapter", "base"]
    with pytest.raises(InputError, match="x is named twice"):
        label_all(["x", "y", "x"])


def test_a_file_in_the_way_is_told_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = run(tmp_path / "no", "--base", tmp_path / "no", "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is not a folder" in result.output


def test_what_an_earlier_analysis_left_is_told(models: Path, tmp_path: Path) -> None:
    (tmp_path / "reference.png").write_bytes(b"old")
    (tmp_path / "delta.png").write_bytes(b"old")
    result = run(models / "math", "--base", models / "base", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    left = f"{tmp_path / 'reference.png'} is left from an earlier analysis"
    assert result.stderr == f"Warning: {left}\n"
    assert (tmp_path / "delta.png").read_bytes() != b"old"
