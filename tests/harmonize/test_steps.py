"""Every step keeps the function of a model: the proof is its logits in float64."""

import pytest

from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.harmonize.conversion import read_conversion
from layerswap_method.harmonize.steps import (
    deepen,
    even_places,
    fits,
    untie,
    widen_heads,
    widen_hidden,
    widen_neurons,
)
from tests.harmonize.models import distance, random_model, save

STEPS = {
    "neurons": lambda model: widen_neurons(model, 56),
    "key-value heads repeated": lambda model: widen_heads(model, 4, 1),
    "groups filled with zero heads": lambda model: widen_heads(model, 2, 3),
    "query heads copied": lambda model: widen_heads(model, 2, 4),
    "both repeated": lambda model: widen_heads(model, 6, 2),
    "zero key-value heads": lambda model: widen_heads(model, 3, 2),
    "zero key-value heads, query heads copied": lambda model: widen_heads(model, 3, 4),
    "residual stream copied": lambda model: widen_hidden(model, 72, 1e-5),
    "residual stream padded": lambda model: widen_hidden(model, 40, 1e-5),
    "copied with another eps": lambda model: widen_hidden(model, 48, 1e-3),
    "padded with another eps": lambda model: widen_hidden(model, 44, 1e-2),
    "another eps": lambda model: widen_hidden(model, 24, 1e-2),
    "deeper": lambda model: deepen(model, 5),
    "untied": untie,
    "all": lambda model: widen_hidden(
        deepen(widen_neurons(widen_heads(untie(model), 2, 4), 48), 4), 40, 1e-3
    ),
}
BIASES = {"attention_bias": True, "mlp_bias": True}
FAMILIES = {
    "untied": {},
    "tied and biased": {"tie_word_embeddings": True, **BIASES},
    "Qwen2": {"family": "Qwen2"},
    "normed queries and keys": {"family": "Qwen3", "attention_bias": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def original(request, tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("original"), **FAMILIES[request.param])


def conversion(folder):
    return read_conversion(read_checkpoint("model", folder))


@pytest.mark.parametrize("step", STEPS)
def test_a_step_keeps_the_logits(step, original, tmp_path):
    before = conversion(original)
    after = STEPS[step](before)
    assert (after is before) == (step == "untied" and not before.shape.tied)
    assert distance(save(after, original, tmp_path / "out"), original) < 1e-9


def test_a_wrong_step_is_seen(original, tmp_path):
    """The comparison can fail: for an eps that is only renamed."""
    wrong = conversion(original).after("", sizes={"eps": 1e-3})
    assert distance(save(wrong, original, tmp_path / "out"), original) > 1e-6


def test_layers_are_spread_evenly():
    expected = {4: (0, 1, 2, 3), 6: (0, 2, 3, 5), 10: (0, 3, 6, 9)}
    assert {depth: even_places(4, depth) for depth in expected} == expected
    spread = even_places(28, 32)
    assert (spread[0], spread[-1], len(set(spread))) == (0, 31, 28)


def test_which_heads_fit():
    # Mistral-7B as Llama-2-7B has them, Llama-3.2-3B as Llama-3.1-8B has them
    assert all(fits(*heads) for heads in [(8, 4, 32, 1), (8, 3, 8, 4), (2, 2, 3, 2)])
    assert not any(fits(*heads) for heads in [(8, 4, 16, 1), (2, 2, 3, 1), (3, 1, 2, 4)])
