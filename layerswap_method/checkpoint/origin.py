"""Whether a model was trained from a base, by a sample of the weights of both.

The one judgement of check, merges, compat, delta and train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer
from layerswap_method.checkpoint.stored import FLOATS, StoredTensor, ensure_rows_there, read_floats

if TYPE_CHECKING:
    from layerswap_method.checkpoint.low_rank import LowRankChange

FAR = 0.7
"""||delta|| / ||base|| from which the base is not the base: of two unrelated models it is about
1.4, of fine-tunes far below 0.5."""

_TENSORS, _VALUES = 16, 1 << 16
"""Number of matrices that are compared, spread over the files, and about of their values."""

_NO_CHANGES: Mapping[str, LowRankChange] = MappingProxyType({})


def sampled_change(
    expert: Mapping[str, StoredTensor],
    base: Mapping[str, StoredTensor],
    changes: Mapping[str, LowRankChange] = _NO_CHANGES,
) -> float | None:
    """Return ||expert - base|| / ||base|| in a sample of the matrices, Frobenius, 0 or more.

    `changes` are an adapter's, which the expert has besides. None where no matrix of one is as
    large as the other's, or where what is read is all zero or not finite, which is another fault.
    """
    import numpy as np

    names = [
        name
        for name, tensor in base.items()
        if len(tensor.shape) >= 2
        and not is_buffer(name)
        and name in expert
        and expert[name].shape == tensor.shape
        and {tensor.dtype, expert[name].dtype} <= {*FLOATS}
        and (len(tensor.shape) == 2 or name not in changes)
    ]
    change = weight = 0.0
    sample = []
    for name in names[:: max(1, len(names) // _TENSORS)]:
        shape = (math.prod(base[name].shape[:-1]), base[name].shape[-1])
        rows = slice(0, min(shape[0], _VALUES // max(1, shape[1]) + 1))
        tensors = [replace(model[name], shape=shape) for model in (expert, base)]
        sample.append((name, tensors, rows))
    ensure_rows_there((tensor, rows) for _, tensors, rows in sample for tensor in tensors)
    for name, tensors, rows in sample:
        # Values that are not finite are looked for at the end.
        with np.errstate(invalid="ignore", over="ignore"):
            expert_rows, base_rows = (
                read_floats(tensor, rows).astype("float64") for tensor in tensors
            )
            if name in changes:
                left, right = changes[name].factors()
                expert_rows += (left[rows] @ right).numpy()
            change += float(((expert_rows - base_rows) ** 2).sum())
            weight += float((base_rows**2).sum())
    if weight > 0 and math.isfinite(change + weight):
        return math.sqrt(change / weight)
    return None


def is_far(change: float | None) -> bool:
    """Return whether a `sampled_change` is more than training from the base makes."""
    return change is not None and change >= FAR


def wrong_base(expert: str, base: str, change: float | None) -> str | None:
    """Return what is said of an expert that `is_far` from its base; None of one that is not."""
    if change is None or not is_far(change):
        return None
    return (
        f"{base} is not the base of {expert}, or {expert} was trained very far from it: "
        f"||delta|| / ||weights|| is {change:.2f} in a sample, of a fine-tune far below 0.5; give "
        "the checkpoint that it was trained from"
    )


def far_experts(checkpoints: Sequence[Checkpoint], base: Checkpoint) -> Iterator[str]:
    """Yield which of the checkpoints `is_far` from the `base` of a merge, the base among them."""
    for expert in checkpoints:
        if expert.path != base.path:
            change = sampled_change(expert.tensors, base.tensors)
            if (problem := wrong_base(expert.name, base.name, change)) is not None:
                yield problem
