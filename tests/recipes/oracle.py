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


def check_revert(
    merged: Tensors,
    layers: frozenset[int],
    threshold: float | None,
    expert: Tensors,
    base: Tensors,
    dtype: torch.dtype,
) -> int:
    """Fail unless every row of every tensor is the side it must be; return the weights kept.

    A row is one input feature: a column of torch's [out, in], or a whole vector.
    """
    assert merged.keys() == expert.keys()
    kept = 0
    for name, tensor in merged.items():
        parts = name.split(".")
        ours, theirs = expert[name], base[name]
        change = (ours.double() - theirs.double()).abs().mean(dim=0, keepdim=True)
        stays = torch.full_like(change, True, dtype=torch.bool)
        if parts[:2] == ["model", "layers"] and int(parts[2]) in layers:
            stays = torch.full_like(change, False, dtype=torch.bool)
        elif threshold is not None:
            stays = change.float() >= threshold
        assert torch.equal(tensor, torch.where(stays, ours.to(dtype), theirs.to(dtype))), name
        kept += int(stays.sum()) * tensor.numel() // stays.numel()
    return kept
