"""The LoRA adapter of a `layer_swap`: what the stream of the merge adds to the base's weights.

Knows streams and peft's form of a LoRA adapter; not recipes or roles. Which expert gives which
tensor, and with which weight, is read off the stream: there is no second plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from layerswap_method.adapter_swap.adapter import NewAdapter
from layerswap_method.adapter_swap.factors import Factors, cut_rank, is_exact, stack
from layerswap_method.checkpoints.lora import LowRankChange
from layerswap_method.checkpoints.spans import read_rows
from layerswap_method.checkpoints.stored import stored_tensor
from layerswap_method.errors import InputError
from layerswap_method.stream.mix import TensorMix
from layerswap_method.stream.weight_stream import WeightStream

Terms = Sequence[tuple[LowRankChange, float]]
"""Changes of one tensor with their shares of it."""


def swap_lora(stream: WeightStream, config: Mapping[str, Any], rank: int | None) -> NewAdapter:
    """Return the adapter that adds to the base what the stream's tensors have beyond it.

    A tensor of one expert keeps that expert's two matrices bit for bit, and its scaling. An average
    has both experts' matrices, one below the other, and the scaling of the first.

    Args:
        stream: of models that are one checkpoint with different adapters.
        config: of one of the adapters.
        rank: every change of a higher rank is replaced by the nearest one of this rank; None
            leaves all of them exact.

    Raises:
        InputError: where no tensor is changed, or an adapter holds NaN or infinite values.
    """
    changed = {name: terms for name, mix in stream.mixes.items() if (terms := _terms(mix))}
    if not changed:
        raise InputError(
            "swap-adapters: the recipe takes nothing that an adapter changes, so the new adapter "
            "would change nothing; take other layers"
        )
    read = {
        name: [
            (_read(change), share * (change.scaling / terms[0][0].scaling))
            for change, share in terms
        ]
        for name, terms in changed.items()
    }
    is_cut = rank is not None and any(_rank(parts) > rank for parts in read.values())
    dtype = _dtype([part for parts in read.values() for part in parts], rounds=is_cut)
    tensors: dict[str, torch.Tensor] = {}
    ranks, alphas, errors, norm = {}, {}, {}, 0.0
    for name, parts in read.items():
        factors = stack(parts, dtype)
        change = changed[name][0][0]
        squared = factors.squared_norm() * change.scaling**2
        norm += squared
        if rank is not None and factors.rank > rank:
            cut = cut_rank(factors, rank)
            factors = Factors(*(each.to(dtype) for each in cut.factors))
            errors[name] = (cut.squared_error * change.scaling**2, squared)
        tensors[change.down] = factors.down.contiguous()
        tensors[change.up] = factors.up.contiguous()
        module = name.removesuffix(".weight")
        ranks[module] = factors.rank
        alphas[module] = _number(change.scaling * factors.rank)
    record = {
        "kind": "lora",
        "tensors": len(changed),
        "ranks": [min(ranks.values()), max(ranks.values())],
        "dtype": str(dtype).removeprefix("torch."),
    }
    lines = [f"adapter: {len(changed)} tensors, rank {_span(ranks.values())}, {record['dtype']}"]
    if rank is not None:
        found = _cut_record(errors, norm)
        record["cut"] = {"rank": rank, **found}
        lines.append(_cut_line(rank, len(changed), found))
    return NewAdapter(tensors, _config(config, ranks, alphas), record, tuple(lines))


def _terms(mix: TensorMix) -> list[tuple[LowRankChange, float]]:
    return [
        (origin.change, number / mix.divisor)
        for origin, number in mix.terms
        if origin.change is not None and origin.change.scaling != 0
    ]


def _read(change: LowRankChange) -> Factors:
    found = Factors(
        *(
            read_rows(stored_tensor(change.file, change.stamp, name))
            for name in (change.down, change.up)
        )
    )
    if not all(bool(each.isfinite().all()) for each in found):
        raise InputError(
            f"{change.file}: {change.down} or its lora_B holds NaN or infinite values; the adapter "
            "is damaged or its training diverged"
        )
    return found


def _rank(parts: Sequence[tuple[Factors, float]]) -> int:
    return sum(factors.rank for factors, _ in parts)


def _dtype(terms: Sequence[tuple[Factors, float]], *, rounds: bool) -> torch.dtype:
    """Return the widest dtype of the factors; at least float32 where 16 bits would round."""
    dtype = terms[0][0].down.dtype
    for factors, _ in terms:
        for each in factors:
            dtype = torch.promote_types(dtype, each.dtype)
    if rounds or not all(is_exact(number) for _, number in terms):
        dtype = torch.promote_types(dtype, torch.float32)
    return dtype


def _config(
    given: Mapping[str, Any], ranks: Mapping[str, int], alphas: Mapping[str, float]
) -> Mapping[str, Any]:
    """Return peft's config: the most common rank and alpha, and patterns for other modules."""
    rank, alpha = _most_common(ranks.values()), _most_common(alphas.values())
    return {
        "peft_type": "LORA",
        "task_type": given.get("task_type") or "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {name: each for name, each in alphas.items() if each != alpha},
        "target_modules": sorted(ranks),
        "fan_in_fan_out": bool(given.get("fan_in_fan_out")),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def _most_common(values: Any) -> Any:
    return Counter(values).most_common(1)[0][0]


def _span(ranks: Any) -> str:
    low, high = min(ranks), max(ranks)
    return str(low) if low == high else f"{low} to {high}"


def _cut_record(errors: Mapping[str, tuple[float, float]], norm: float) -> dict[str, Any]:
    """Return how far the cut changes are from the exact ones, relative to their norms."""
    return {
        "relative_error": math.sqrt(math.fsum(error for error, _ in errors.values()) / norm)
        if norm
        else 0.0,
        "tensors": {
            name: math.sqrt(error / squared) if squared else 0.0
            for name, (error, squared) in errors.items()
        },
    }


def _cut_line(rank: int, count: int, found: Mapping[str, Any]) -> str:
    cut = found["tensors"]
    if not cut:
        return f"rank {rank}: no tensor has a higher rank; all are exact"
    worst = max(cut, key=cut.__getitem__)
    return (
        f"rank {rank}: {len(cut)} of {count} tensors cut; relative error of the whole change "
        f"{found['relative_error']:.3g}, largest {cut[worst]:.3g} ({worst})"
    )
