"""A model in the coordinates of another: what was hidden by coordinates is found again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from layerswap_method.harmonize.align import Aligned, Neurons, align
from layerswap_method.harmonize.coordinates import fold_norms, reorder, rotate
from layerswap_method.harmonize.matching import (
    correlations,
    fit_rotation,
    match_heads,
    neuron_similarity,
)
from layerswap_method.harmonize.model import Model
from layerswap_method.harmonize.pairs import pair_tokens
from tests.harmonize.models import logits, random_model, save
from tests.harmonize.test_coordinates import opened, random_orders, random_rotation

SIZES = {"vocab_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}


def hidden_twin(model: Model) -> Model:
    """Return a model of the same function in coordinates of its own."""
    turned = rotate(fold_norms(model), random_rotation(model.shape.hidden))
    return reorder(turned, random_orders(model))


def run(ours: Model, theirs: Model, neurons: Neurons) -> Aligned:
    return align(ours, theirs, pair_tokens((ours, theirs), (None, None)), neurons)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("align") / "model", **SIZES)


@pytest.mark.parametrize("neurons", ["activations", "weights"])
def test_the_same_model_in_other_coordinates_comes_back(source: Path, neurons: Neurons) -> None:
    model = opened(source)
    found = run(model, hidden_twin(model), neurons)
    for name, tensor in found.ours.tensors.items():
        assert (tensor.read() - found.theirs.tensors[name].read()).abs().max() < 1e-9, name
    means = found.similarities.means()
    for kind in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert abs(means[kind]["rotated"]) < 0.9 < means[kind]["heads"] == pytest.approx(1)
    for kind in ("gate_proj", "up_proj", "down_proj"):
        assert abs(means[kind]["heads"]) < 0.9 < means[kind]["neurons"] == pytest.approx(1)
    assert abs(means["hidden states"]["harmonized"]) < 0.5
    assert means["hidden states"]["rotated"] == pytest.approx(1)
    assert means["embed_tokens"]["rotated"] == pytest.approx(1)


@pytest.mark.parametrize("neurons", ["activations", "weights", "none"])
def test_another_model_keeps_its_function(source: Path, tmp_path: Path, neurons: Neurons) -> None:
    stranger = random_model(tmp_path / "stranger", seed=1, tie_word_embeddings=True, **SIZES)
    found = run(opened(source), opened(stranger), neurons)
    for model, origin, name in (
        (found.ours, source, "ours"),
        (found.theirs, stranger, "theirs"),
    ):
        folder = save(model, origin, tmp_path / name)
        assert (logits(folder) - logits(origin)).abs().max() < 1e-9
    means = found.similarities.means()
    assert means["embed_tokens"]["rotated"] > means["embed_tokens"]["folded"]
    assert ("neurons" in means["up_proj"]) == (neurons != "none")
    if neurons == "weights":
        assert means["up_proj"]["neurons"] > means["up_proj"]["heads"]
        assert means["q_proj"]["heads"] > means["q_proj"]["rotated"]


def test_hidden_states_are_those_of_the_whole_models(source: Path, tmp_path: Path) -> None:
    import transformers

    stranger = random_model(tmp_path / "stranger", seed=1, **SIZES)
    ours, theirs = opened(source), opened(stranger)
    pairs = pair_tokens((ours, theirs), (None, None))
    found = align(ours, theirs, pairs, "none").similarities.found["hidden states"]["harmonized"]
    states = []
    for folder, tokens in zip((source, stranger), pairs.probe, strict=True):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        with torch.no_grad():
            states.append(model(tokens, output_hidden_states=True).hidden_states[:-1])
    expected = [
        float(torch.nn.functional.cosine_similarity(one, other, dim=-1).mean())
        for one, other in zip(*states, strict=True)
    ]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 3


def test_the_rotation_is_orthogonal_and_the_best_of_many() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(20, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    found = fit_rotation(one, other)
    assert torch.allclose(found.T @ found, torch.eye(6, dtype=torch.float64))
    error = (one @ found - other).norm()
    for _ in range(100):
        skew = torch.randn(6, 6, dtype=torch.float64, generator=generator) * 0.1
        nearby = found @ torch.linalg.matrix_exp(skew - skew.T)
        assert (one @ nearby - other).norm() >= error


def test_zero_units_have_no_similarity() -> None:
    given = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    given[:, 1] = 2.0
    found = correlations(given, given)
    assert found[1].tolist() == found[:, 1].tolist() == [0, 0, 0]
    assert found.diagonal()[[0, 2]].tolist() == pytest.approx([1, 1])
    weights = [given[:3, :], given[:3, :], given[:3, :].T]
    weights[0] = weights[0] * torch.tensor([[1.0], [0.0], [1.0]])
    assert neuron_similarity(weights, weights).diagonal().tolist() == pytest.approx([3, 2, 3])


def test_query_heads_stay_with_their_key_head() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (
        [torch.randn(size, 10, generator=generator) for size in (12, 6, 6, 12)] for _ in range(2)
    )
    for each in (ours, theirs):
        each[3] = each[3].T
    heads, kv_heads = match_heads(ours, theirs, heads=6, kv_heads=3)
    assert sorted(heads.tolist()) == list(range(6))
    assert [number // 2 for number in heads.tolist()[::2]] == kv_heads.tolist()
    assert [number // 2 for number in heads.tolist()[1::2]] == kv_heads.tolist()
