"""The measured divergence: against numbers made by hand, and on trained experts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from ablations.cli import main
from ablations.models.find import find_model
from ablations.study.experts import read_experts_file
from ablations.train.divergence import measure
from ablations.train.drift import drift, hidden_states
from ablations.train.files import read_config
from ablations.train.run import train_expert
from tests.train.runs import write_base, write_config

TEXTS = ["w1 w2 w3 w4", "w5 w6 w7"]


def _moved(base: Path, folder: Path, change: dict[str, torch.Tensor]) -> Path:
    """Write the base with something added to some tensors."""
    folder.mkdir()
    for file in base.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(base / "model.safetensors")
    moved = {name: tensor + change.get(name, 0) for name, tensor in tensors.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_numbers_are_those_of_the_formulas(tmp_path: Path, base: Path) -> None:
    before = load_file(base / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    change = {name: torch.full_like(before[name], 0.25)}
    expert = find_model(str(_moved(base, tmp_path / "expert", change)))
    (found,) = measure([expert], find_model(str(base)), TEXTS)
    norm = torch.cat([tensor.double().flatten() for tensor in before.values()]).norm()
    moved = 0.25 * before[name].numel() ** 0.5
    assert found.relative_norm == pytest.approx(moved / norm.item(), rel=1e-5)
    layer = torch.cat([t.double().flatten() for n, t in before.items() if ".layers.2." in n])
    expected = [0, 0, pytest.approx(moved / layer.norm().item(), rel=1e-5), 0]
    assert list(found.layer_relative_norm) == expected
    # Embeddings and the layers before it stay where they are, to the bit.
    assert found.layer_drift[:3] == pytest.approx([0, 0, 0], abs=1e-12)
    assert all(value > 1e-4 for value in found.layer_drift[3:])
    assert len(found.layer_drift) == 5


def test_drift_does_not_hide_a_rotation() -> None:
    states = [torch.randn(3, 7, 8), torch.randn(3, 5, 8)]
    rotation = torch.linalg.qr(torch.randn(8, 8)).Q
    assert drift(states, states) == pytest.approx([0, 0, 0], abs=1e-12)
    assert all(value > 0.1 for value in drift(states, [each @ rotation for each in states]))
    assert drift(states, [-each for each in states]) == pytest.approx([2, 2, 2])


def test_hidden_states_are_those_of_the_model_on_128_tokens(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", max_position_embeddings=512)
    (states,) = hidden_states(base, None, ["w1 " * 300])
    assert states.shape == (5, 128, 64)


def test_an_expert_reads_the_tokens_of_its_base(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", max_position_embeddings=512)
    expert = shutil.copytree(base, tmp_path / "expert")
    for file in expert.glob("tokenizer*"):
        file.unlink()
    (found,) = measure([find_model(str(expert))], find_model(str(base)), ["w1 w2 w3"])
    assert found.drift == pytest.approx(0.0, abs=1e-12)


def test_a_command_on_two_experts_writes_facts(tmp_path: Path, base: Path, rows: Path) -> None:
    """Two experts that moved in opposite directions in one layer, the same way in another."""
    before = load_file(base / "model.safetensors")
    first = "model.layers.0.mlp.up_proj.weight"
    ones = torch.full_like(before[first], 0.1)
    _moved(base, tmp_path / "one", {first: ones})
    _moved(base, tmp_path / "two", {first: -ones})
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    out = tmp_path / "out"
    call = ["divergence", str(tmp_path / "one"), str(tmp_path / "two"), "--base", str(base)]
    result = CliRunner().invoke(main, [*call, "--text", str(texts), "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads((out / "divergence.json").read_text())
    assert [row["expert"] for row in found["experts"]] == ["one", "two"]
    experts = read_experts_file(out / "experts.yml")
    assert set(experts.experts) == {"base", "one", "two"}
    assert set(experts.facts()["one"]) == {"relative_norm", "drift"}
    # Without text there is no drift, and no model is loaded.
    result = CliRunner().invoke(main, [*call, "--out", str(out)])
    assert set(read_experts_file(out / "experts.yml").facts()["one"]) == {"relative_norm"}


def test_texts_that_cannot_be_read_are_named(tmp_path: Path, base: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    for content, said in [
        ("{}\n", 'line 1: write {"text"'),
        ('{"text": " "}\n', 'line 1: write {"text"'),
        ("", "holds no text"),
    ]:
        texts.write_text(content)
        result = CliRunner().invoke(
            main, ["divergence", str(base), "--base", str(base), "--text", str(texts)]
        )
        assert result.exit_code == 2
        assert said in result.output


def test_an_adapter_on_another_base_is_refused(tmp_path: Path, base: Path, rows: Path) -> None:
    config = write_config(tmp_path / "c.yml", base, rows, regime={"kind": "lora"}, measure=False)
    train_expert(read_config(str(config)), tmp_path / "adapter")
    other = write_base(tmp_path / "other", seed=7)
    result = CliRunner().invoke(
        main, ["divergence", f"{other}+{tmp_path / 'adapter'}", "--base", str(other)]
    )
    assert result.exit_code == 2
    assert f"was trained on another base than {other}" in result.output


@pytest.mark.slow
def test_longer_and_hotter_training_diverges_more(tmp_path: Path, base: Path, rows: Path) -> None:
    write_config(tmp_path / "parent.yml", base, rows)
    facts = []
    for name, change in {
        "parent": {},
        "longer": {"samples": 64},
        "hotter": {"learning_rate": 0.004},
    }.items():
        config = tmp_path / f"{name}_.yml"
        config.write_text(yaml.safe_dump({"extends": "parent.yml", **change}))
        facts.append(train_expert(read_config(str(config)), tmp_path / name)["facts"])
    parent, *dialled = facts
    for found in dialled:
        assert all(found[key] > 1.5 * parent[key] for key in parent)
