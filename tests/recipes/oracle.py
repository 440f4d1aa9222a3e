"""Checks a merged checkpoint against its sources, tensor by tensor, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tests.recipes.expected import Swap
from tests.standins.oracle import (
    chosen,
    dominant,
    layer_number,
    mean_change,
    part_of,
    published_shares,
    row_change,
)

Tensors = Mapping[str, torch.Tensor]


def check_swap(
    merged: Tensors,
    swap: Swap,
    task: Sequence[Tensors],
    language: Sequence[Tensors],
    dtype: torch.dtype,
    base: Tensors | None = None,
) -> None:
    """Fail unless every tensor is its source's, or the average of the two soups, rounded once.

    With `magnitude` each model of an average counts by 1 / (mean change from the base).
    """
    inverse = {
        id(model): 1 / mean_change(model, base or {}) if swap.magnitude else 1.0
        for model in (*task, *language)
    }
    assert merged.keys() == task[0].keys()
    layers = {int(name.split(".")[2]) for name in merged if name.startswith("model.layers.")}
    assert layers == set(range(swap.layers))
    for name, tensor in merged.items():
        source = swap.source(name)
        sides = {"task": [task], "language": [language], "average": [task, language]}[source]
        weights = [inverse[id(model)] / len(models) for models in sides for model in models]
        check_average(
            name,
            tensor,
            [model[name] for models in sides for model in models],
            [weight / sum(weights) for weight in weights],
            dtype,
            digits=swap.magnitude,
        )


def check_shares(
    merged: Tensors,
    unit: str,
    task: Tensors,
    language: Tensors,
    base: Tensors,
    dtype: torch.dtype,
    dominance: float | None = None,
) -> list[str]:
    """Fail unless every tensor is what arXiv 2601.22620 gives; return the source of every unit.

    Each unit from the expert with the larger share, up to 0.001 half and half. With modules,
    in-layer norms are those of the model that is merged into. With `dominance`, the base has what
    neither expert has a share of that is larger by so much, and everything outside the layers.
    """
    shares = [published_shares(expert, base, unit) for expert in (task, language)]
    if dominance is None:
        sources = {place: chosen(shares[0][place] - shares[1][place], 0.001) for place in shares[0]}
    else:
        sources = {p: dominant(shares[0][p], shares[1][p], dominance) for p in shares[0]}
    for name, tensor in merged.items():
        source, layer = "average" if dominance is None else "base", layer_number(name)
        if layer is not None:
            place = (layer, part_of(name) if unit == "module" else "layer")
            source = sources.get(place, "language")
        models = {"task": [task], "language": [language], "base": [base]}.get(
            source, [task, language]
        )
        tensors = [model[name] for model in models]
        check_average(name, tensor, tensors, [1 / len(models)] * len(models), dtype)
    return [sources[place] for place in sorted(sources)]


def check_average(
    name: str,
    result: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    weights: Sequence[float],
    dtype: torch.dtype,
    *,
    digits: bool = False,
) -> None:
    """Fail unless `result` is the weighted sum of `tensors` (weights sum to 1), rounded once.

    One tensor must come through unchanged but for the cast. The half of two tensors of one dtype
    must be the correctly rounded one. Other sums are accumulated in float32 before the rounding,
    which may cost a few of its last bits. With `digits` the weights have six of them.
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
    if digits:
        spread = torch.stack([(t.double() - tensors[0].double()).abs() for t in tensors])
        slack = slack + spread.amax(dim=0) * 1e-5
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
    """Fail unless every row of every tensor is the side it must be; return the weights kept."""
    assert merged.keys() == expert.keys()
    kept = 0
    for name, tensor in merged.items():
        ours, theirs = expert[name], base[name]
        change = row_change(name, ours, theirs, "llama")
        stays = torch.full_like(change, layer_number(name) not in layers, dtype=torch.bool)
        if threshold is not None:
            stays &= change.float() >= threshold
        assert torch.equal(tensor, torch.where(stays, ours.to(dtype), theirs.to(dtype))), name
        kept += int(stays.sum()) * tensor.numel() // stays.numel()
    return kept
