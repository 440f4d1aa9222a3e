"""Other coordinates of a model: the function stays, in float64 to 1e-9."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from layerswap_method.checkpoints.headers import read_checkpoint
from layerswap_method.harmonize.coordinates import LayerOrder, fold_norms, reorder, rotate
from layerswap_method.harmonize.model import Model, open_model
from tests.harmonize.models import logits, random_model, save

SIZES = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one head a group": {"num_key_value_heads": 4},
    "mistral": {"family": "Mistral"},
    "qwen2": {"family": "Qwen2"},
    "qwen3": {"family": "Qwen3", "tie_word_embeddings": True},
}


def opened(folder: Path) -> Model:
    return open_model(read_checkpoint(folder.name, folder))


def random_rotation(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    found: torch.Tensor = torch.linalg.qr(
        torch.randn(size, size, dtype=torch.float64, generator=generator)
    )[0]
    return found


def random_orders(model: Model) -> dict[int, LayerOrder]:
    generator = torch.Generator().manual_seed(2)
    shape, orders = model.shape, {}
    for layer in range(shape.layers):
        kv_heads = torch.randperm(shape.kv_heads, generator=generator)
        heads = [
            head * shape.group + torch.randperm(shape.group, generator=generator)
            for head in kv_heads.tolist()
        ]
        neurons = torch.randperm(shape.intermediate, generator=generator)
        orders[layer] = LayerOrder(neurons, torch.cat(heads), kv_heads)
    return orders


STEPS: dict[str, Callable[[Model], Model]] = {
    "fold": fold_norms,
    "rotate": lambda model: rotate(fold_norms(model), random_rotation(model.shape.hidden)),
    "reorder": lambda model: reorder(model, random_orders(model)),
    "all": lambda model: reorder(
        rotate(fold_norms(model), random_rotation(model.shape.hidden)), random_orders(model)
    ),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_function_stays(tmp_path: Path, sizes: str, step: str) -> None:
    source = random_model(tmp_path / "model", **SIZES[sizes])  # type: ignore[arg-type]
    model = opened(source)
    changed = STEPS[step](model)
    folder = save(changed, source, tmp_path / "changed")
    assert (logits(folder) - logits(source)).abs().max() < 1e-9
    assert any(
        not torch.equal(tensor.read(), changed.tensors[name].read())
        for name, tensor in model.tensors.items()
    )


def test_a_folded_model_is_untied_and_its_norms_are_ones(tmp_path: Path) -> None:
    model = fold_norms(opened(random_model(tmp_path / "model", tie_word_embeddings=True)))
    assert not model.shape.tied
    norms = [t.read() for name, t in model.tensors.items() if "norm" in name]
    assert len(norms) == 7
    assert all(torch.equal(norm, torch.ones_like(norm)) for norm in norms)
    assert not torch.equal(
        model.tensors["lm_head.weight"].read(), model.tensors["model.embed_tokens.weight"].read()
    )


def test_a_rotation_without_folded_norms_would_be_another_function(tmp_path: Path) -> None:
    source = random_model(tmp_path / "model")
    model = opened(source)
    wrong = rotate(model, random_rotation(model.shape.hidden))
    folder = save(wrong, source, tmp_path / "changed")
    assert (logits(folder) - logits(source)).abs().max() > 1e-3
