"""Checks a merged checkpoint against its sources, tensor by tensor, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tests.recipes.expected import Swap

Tensors = Mapping[str, torch.Tensor]


def check_swap(
    merged: Tensors,
    swap: Swap,
    task: Sequence[Tensors],
    language: Sequence[Tensors],
    dtype: torch.dtype,
) -> None:
    """Fail unless every tensor is its source's, or the average of the two soups, rounded once."""
    assert merged.keys() == task[0].keys()
    layers = {int(name.split(".")[2]) for name in merged if name.startswith("model.layers.")}
    assert layers == set(range(swap.layers))
    for name, tensor in merged.items():
        source = swap.source(name)
        sides = {"task": [task], "language": [language], "average": [task, language]}[source]
        check_average(
            name,
            tensor,
            [model[name] for models in sides for model in models],
            [1 / len(models) / len(sides) for models in sides for _ in models],
            dtype,
        )


def check_average(
    name: str,
    result: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    weights: Sequence[float],
    dtype: torch.dtype,
) -> None:
    """Fail unless `result` is the weighted sum of `tensors` (weights sum to 1), rounded once.

    One tensor must come through unchanged but for the cast. The half of two tensors of one dtype
    must be the correctly rounded one. Other sums are accumulated in float32 before the rounding,
    which may cost a few of its last bits.
    """
    assert result.dtype == dtype, name
    assert abs(sum(weights) - 1) < 1e-12
    if len(tensors) == 1:
        assert torch.equal(result, tensors[0].to(dtype)), name
        return
    exact = sum(t.double() * w for t, w in zip(tensors, weights, strict=True))
    assert isinstance(exact, torch.Tensor)
    rounded = exact.to(dtype)
    if list(weights) == [0.5, 0.5] and tensors[0].dtype == tensors[1].dtype:
        assert torch.equal(result, rounded), name
        return
    largest = torch.stack([t.double().abs() for t in tensors]).amax(dim=0)
    slack = largest * len(tensors) * 2.0**-24
    error = (result.double() - exact).abs()
    assert bool((error <= (rounded.double() - exact).abs() + slack).all()), name
