"""Bit-equality with what stock mergekit gives for the same swap written as `slices:`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, stored
from tests.standins.zoo import LAYERS


def slices_recipe(given: SimpleNamespace, swap: Swap, **top: Any) -> dict[str, Any]:
    """Return the swap as stock `linear` slices.

    The first slice gives mergekit the models of the embeddings and the last one those of norm and
    head: slices of no layers with both experts average them.
    """

    def source(role: str, start: int, end: int) -> dict[str, Any]:
        return {
            "model": str(getattr(given, role)),
            "layer_range": [start, end],
            "parameters": {"weight": 1},
        }

    both = ("task", "language")
    slices = [{"sources": [source(role, 0, 0) for role in both]}]
    for name, run in groupby(range(swap.layers), swap.of_layer):
        layers = list(run)
        chosen = both if name == "average" else (name,)
        slices.append({"sources": [source(r, layers[0], layers[-1] + 1) for r in chosen]})
    slices.append({"sources": [source(role, 0, 0) for role in both]})
    return {"merge_method": "linear", "base_model": str(given.task), "slices": slices, **top}


@pytest.mark.parametrize(
    "swap",
    [Swap(LAYERS), Swap(LAYERS, 1, 1, 0, 0), Swap(LAYERS, 0, 2, 1, 2), Swap(LAYERS, 3, 3, 0, 0)],
    ids=lambda s: f"b{s.b}u{s.u}tb{s.t_b}tu{s.t_u}",
)
@pytest.mark.parametrize("family", ["llama", "llama_tied", "qwen2", "mixtral"])
def test_the_same_tensors_bit_for_bit(
    family: str, swap: Swap, experts: Any, tmp_path: Path
) -> None:
    given = experts(family)
    ours = merge(recipe(roles(given), swap.parameters()), tmp_path / "ours")
    stock = merge(slices_recipe(given, swap), tmp_path / "stock")
    assert_same(stored(ours), stored(stock))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_same_tensors_with_a_dtype(dtype: str, experts: Any, tmp_path: Path) -> None:
    given = experts("llama")
    swap = Swap(LAYERS)
    ours = merge(recipe(roles(given), swap.parameters(), dtype=dtype), tmp_path / "ours")
    stock = merge(slices_recipe(given, swap, dtype=dtype), tmp_path / "stock")
    assert_same(stored(ours), stored(stock))


def test_plain_linear_is_a_swap_of_no_layers_with_everything_averaged(
    experts: Any, tmp_path: Path
) -> None:
    given = experts("llama")
    swap = Swap(LAYERS, b=0, u=0, t_b=3, t_u=3)
    ours = merge(recipe(roles(given), swap.parameters()), tmp_path / "ours")
    document = {
        "merge_method": "linear",
        "base_model": str(given.task),
        "models": [
            {"model": str(path), "parameters": {"weight": 0.5}}
            for path in (given.task, given.language)
        ],
    }
    assert_same(stored(ours), stored(merge(document, tmp_path / "stock")))
