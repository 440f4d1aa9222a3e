"""Whether a model was trained from a base, by a sample of the weights of both.

The one judgement of check, merges, compat, delta and train.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, name_list
from layerswap_method.checkpoint.stored import FLOATS, StoredTensor, ensure_rows_there, read_floats
from layerswap_method.hub.partial import is_partial

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


def doubtful_experts(checkpoints: Sequence[Checkpoint], base: Checkpoint) -> Iterator[str]:
    """Yield which checkpoints are far from the `base` of a merge, or are it under another path."""
    for expert in checkpoints:
        if expert.path != base.path:
            change = sampled_change(expert.tensors, base.tensors)
            if (problem := wrong_base(expert.name, base.name, change)) is not None:
                yield problem
            elif change == 0 and "+" not in expert.name:  # an adapter changes it
                yield (
                    f"{expert.name} changes nothing: in a sample of its matrices it is "
                    f"{base.name}, value for value; give the checkpoint that was trained"
                )


def damaged_tensors(checkpoints: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield which checkpoints hold NaN or infinite values, by the first row of every tensor."""
    for checkpoint in checkpoints:
        tensors = checkpoint.tensors
        if damaged := [
            n for n, tensor in tensors.items() if not is_buffer(n) and _is_damaged(tensor)
        ]:
            yield (
                f"{checkpoint.name}: values of {name_list(damaged)} are NaN or infinite; the "
                "checkpoint is damaged or its training diverged"
            )


def adapter_faults(name: str, changes: Mapping[str, LowRankChange]) -> Iterator[str]:
    """Yield that an adapter changes nothing, or by values that are not finite."""
    factors = [factor for change in changes.values() for factor in (change.down, change.up)]
    if damaged := [factor.name for factor in factors if _is_damaged(factor)]:
        yield f"{name}: values of {name_list(damaged)} in its adapter are NaN or infinite"
    elif not any(change.scaling and _has_values(change.up) for change in changes.values()):
        yield (
            f"{name} changes nothing: every lora_B of its adapter, or its alpha, is zero; give the "
            "adapter that was trained"
        )


@functools.lru_cache(maxsize=1 << 16)
def _is_damaged(tensor: StoredTensor) -> bool:
    """Return whether a value is not finite in the first row of a tensor whose bytes are here."""
    import numpy as np

    if tensor.dtype not in FLOATS or math.prod(tensor.shape) == 0 or is_partial(tensor.file):
        return False
    flat = replace(tensor, shape=(math.prod(tensor.shape),))
    first_row = slice(0, min(tensor.shape[-1] if tensor.shape else 1, _VALUES))
    return not bool(np.isfinite(read_floats(flat, first_row)).all())


@functools.lru_cache(maxsize=1 << 16)
def _has_values(tensor: StoredTensor) -> bool:
    """Return whether a value of a tensor is not zero; True for a dtype that is not looked at."""
    return tensor.dtype not in FLOATS or bool(read_floats(tensor).any())
