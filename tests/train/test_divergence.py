"""The measured divergence: against numbers made by hand, and on trained experts."""

import json
import shutil

import pytest
import torch

from ablations.models.find import find_model
from ablations.study.files import read_experts_file
from ablations.train.divergence import drift, hidden_states, measure_divergence
from layerswap_method.errors import InputError
from tests.standins.command import layerswap, output_of
from tests.standins.fine_tunes import rewritten
from tests.standins.oracle import stored
from tests.train.conftest import run, write_base, write_config, write_jsonl

TEXTS = ["w1 w2 w3 w4", "w5 w6 w7"]


def moved(base, folder, name, by):
    """Write the base with a number added to a tensor."""
    return rewritten(base, folder, lambda n, tensor: tensor + by if n == name else tensor)


def test_the_numbers_are_those_of_the_formulas(tmp_path, base):
    before = stored(base)
    name = "model.layers.2.mlp.up_proj.weight"
    expert = moved(base, tmp_path / "expert", name, 0.25)
    (found,) = measure_divergence([find_model(str(expert))], find_model(str(base)), TEXTS)
    norm = torch.cat([tensor.double().flatten() for tensor in before.values()]).norm()
    change = 0.25 * before[name].numel() ** 0.5
    assert found.relative_norm == pytest.approx(change / norm.item(), rel=1e-5)
    layer = torch.cat([t.double().flatten() for n, t in before.items() if ".layers.2." in n])
    expected = [0, 0, pytest.approx(change / layer.norm().item(), rel=1e-5), 0]
    assert list(found.layer_relative_norm) == expected
    # Embeddings and the layers before it stay where they are, to the bit.
    assert found.layer_drift[:3] == pytest.approx([0, 0, 0], abs=1e-12)
    assert all(value > 1e-4 for value in found.layer_drift[3:])
    assert len(found.layer_drift) == 5


def test_drift_does_not_hide_a_rotation():
    states = [torch.randn(3, 7, 8), torch.randn(3, 5, 8)]
    rotation = torch.linalg.qr(torch.randn(8, 8)).Q
    assert drift(states, states) == pytest.approx([0, 0, 0], abs=1e-12)
    assert all(value > 0.1 for value in drift(states, [state @ rotation for state in states]))
    assert drift(states, [-state for state in states]) == pytest.approx([2, 2, 2])


def test_hidden_states_are_of_128_tokens_and_an_expert_has_the_tokenizer_of_its_base(tmp_path):
    base = write_base(tmp_path / "base", max_position_embeddings=512)
    (states,) = hidden_states(base, None, ["w1 " * 300])
    assert states.shape == (5, 128, 64)
    expert = shutil.copytree(base, tmp_path / "expert", ignore=lambda *_: {"tokenizer.json"})
    (found,) = measure_divergence([find_model(str(expert))], find_model(str(base)), ["w1 w2 w3"])
    assert found.drift == pytest.approx(0.0, abs=1e-12)


def test_a_command_on_two_experts_writes_facts(tmp_path, base):
    for name, by in (("one", 0.1), ("two", -0.2)):
        moved(base, tmp_path / name, "model.layers.0.mlp.up_proj.weight", by)
    out = tmp_path / "out"
    texts = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])
    words = ["delta", tmp_path / "one", tmp_path / "two", "--base", base]
    output_of(*words, "--text", texts, "--out", out)
    assert (out / "one/delta.csv").is_file()
    rows = json.loads((out / "divergence.json").read_text())["experts"]
    assert [row["expert"] for row in rows] == ["one", "two"]
    facts = read_experts_file(out / "experts.yml").facts()
    assert set(facts["one"]) == {"relative_norm", "drift"}
    assert facts["two"]["relative_norm"] == pytest.approx(2 * facts["one"]["relative_norm"])
    texts.write_text("{}\n")
    result = layerswap(*words, "--text", texts, "--out", out)
    assert (result.exit_code, "line 1: no field 'text'" in result.output) == (2, True)
    mine = tmp_path / "mine" / "experts.yml"
    mine.parent.mkdir()
    mine.write_text("experts: {}\n")
    write_jsonl(texts, [{"text": text} for text in TEXTS])
    result = layerswap(*words, "--text", texts, "--out", mine.parent)
    assert [path.name for path in mine.parent.iterdir()] == ["experts.yml"]
    assert (result.exit_code, f"{mine}: exists, and layerswap did not" in result.output) == (
        2,
        True,
    )
    assert mine.read_text() == "experts: {}\n"
    result = layerswap("delta", "--reference", "Swahili expert #1", "--text", texts, "--out", out)
    assert (result.exit_code, "is of an EXPERT and its --base" in result.output) == (2, True)


def test_an_adapter_on_another_base_is_refused(tmp_path, base, rows):
    run(write_config(tmp_path / "c.yml", base, rows, regime="lora"), tmp_path / "adapter")
    other = write_base(tmp_path / "other", seed=7)
    expert = find_model(f"{other}+{tmp_path / 'adapter'}")
    with pytest.raises(InputError, match=f"was trained on another base than {other}"):
        measure_divergence([expert], find_model(str(other)), [])
