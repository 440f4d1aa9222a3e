"""Each step keeps the function of a model: the proof is its logits in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.errors import InputError
from layerswap_method.harmonize.deepen import deepen, even_places
from layerswap_method.harmonize.model import Step, open_model
from layerswap_method.harmonize.widen import fits, widen_heads, widen_hidden, widen_neurons
from tests.harmonize.models import logits, random_model, save

BIASES = {"attention_bias": True, "mlp_bias": True}
STEPS: dict[str, Step] = {
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
    "deeper below": lambda model: deepen(model, 5, [0, 1]),
    "deeper above": lambda model: deepen(model, 4, [3]),
    "untied": lambda model: model.untied(),
}


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"tie_word_embeddings": True, **BIASES},
        {"family": "Qwen3", "attention_bias": True},
    ],
    ids=["untied", "tied and biased", "normed queries and keys"],
)
def original(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, torch.Tensor]:
    """Return a random model, and its logits."""
    folder = tmp_path_factory.mktemp("original")
    random_model(folder, **request.param)
    return folder, logits(folder)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_keeps_the_logits(
    step: str, original: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    folder, expected = original
    before = open_model(read_checkpoint("model", folder))
    after = STEPS[step](before)
    found = logits(save(after, folder, tmp_path / "out"))
    assert (found - expected).abs().max() < 1e-9 < expected.abs().max()


def test_a_wrong_step_is_seen(original: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    """The comparison can fail: heads of which none is divided, an eps that is only renamed."""
    folder, expected = original
    model = open_model(read_checkpoint("model", folder))
    wrong = model.changed(model.tensors, "", eps=1e-3)
    found = logits(save(wrong, folder, tmp_path / "out"))
    assert (found - expected).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("places", "depth"), [((0, 2, 3, 5), 6), ((0, 1, 2, 3), 4), ((0, 3, 6, 9), 10)]
)
def test_layers_are_spread_evenly(places: tuple[int, ...], depth: int) -> None:
    assert even_places(4, depth) == places
    spread = even_places(28, 32)
    assert (spread[0], spread[-1], len(set(spread))) == (0, 31, 28)


def test_layers_that_do_not_fit_are_refused(original: tuple[Path, torch.Tensor]) -> None:
    model = open_model(read_checkpoint("model", original[0]))
    for inserted in ([0], [0, 5], [1, 1]):
        with pytest.raises(InputError, match="--align-depth: model needs 2 new layers, each from"):
            deepen(model, 5, inserted)


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        ((8, 4), (32, 1), True),  # Mistral-7B as Llama-2-7B has it
        ((8, 3), (8, 4), True),  # Llama-3.2-3B as Llama-3.1-8B has it
        ((8, 4), (16, 1), False),
        ((2, 2), (3, 2), True),
        ((2, 2), (3, 1), False),
        ((3, 1), (2, 4), False),
    ],
)
def test_which_heads_fit(old: tuple[int, int], new: tuple[int, int], can: bool) -> None:
    assert fits(*old, *new) == can
