"""The sums over an expert's change of one tensor that every statistic is made of.

Each block of rows is looked at once, in float32; what is summed over blocks is summed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from layerswap_method.deltas.pair import DeltaPair, not_finite, read_deltas
from layerswap_method.deltas.pair import for_each_tensor as for_each_tensor

NEAR_STEPS = 2
"""A changed weight that is at most so many representable values of the expert's dtype away from
the base (rounded to that dtype) sits on the rounding grid: its change is made by rounding."""

_FINE_ROWS = 256
"""Rows of a block up to which columns are summed in float32."""

Sums = dict[str, Any]
"""Of one tensor:

- ``means``: [features] float64 array, the mean absolute change (MAV) of every input feature;
- ``change``, ``base``: sums of squares of the change and of the base;
- ``size``: number of values; ``changed``: those with a change other than 0 in float32;
- ``rounded``: those of them that are stored in 16 bits, ``near``: and sit on the rounding grid.
"""


def tensor_sums(pair: DeltaPair, name: str) -> Sums:
    """Return the `Sums` of one tensor; both checkpoints are read once.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    layout, stored = pair.layout(name), pair.expert_dtype(name)
    grid = stored if stored in (torch.bfloat16, torch.float16) else None
    rows = np.zeros(layout.features)
    change = base = 0.0
    size = changed = near = 0
    for block in read_deltas(pair, name):
        first, values, weights = block.first, block.delta.view(-1), block.base.float().view(-1)
        change += float(torch.dot(values, values))
        base += float(torch.dot(weights, weights))
        count = int(np.count_nonzero(values.numpy() != 0))  # several times faster than torch
        size += len(values)
        changed += count
        if grid is not None:
            steps = _patterns(block.expert, grid) - _patterns(block.base, grid)
            steps += np.int16(NEAR_STEPS)
            close = steps.view(np.uint16) <= np.uint16(2 * NEAR_STEPS)
            # The unchanged are zero steps away, so they are in the count and come off it.
            near += int(np.count_nonzero(close)) - (len(values) - count)
        lines = block.delta.abs_().numpy()
        if layout.across:
            place = first // layout.rows * layout.columns
            dtype = np.float32 if len(lines) <= _FINE_ROWS else np.float64
            rows[place : place + layout.columns] += np.add.reduce(lines, axis=0, dtype=dtype)
        else:
            rows[first : first + len(lines)] = np.add.reduce(lines, axis=1)
    if not np.isfinite(change) or not np.isfinite(base):
        raise not_finite(pair, name)
    rows /= max(1, layout.rows if layout.across else layout.columns)
    rounded = 0 if grid is None else changed
    sums = {"means": rows, "change": change, "base": base, "size": size, "changed": changed}
    return {**sums, "rounded": rounded, "near": near}


def change_product(one: DeltaPair, other: DeltaPair, name: str) -> float:
    """Return the dot product of two experts' changes of one tensor."""
    pairs = zip(read_deltas(one, name), read_deltas(other, name), strict=True)
    return sum(float(torch.dot(a.delta.view(-1), b.delta.view(-1))) for a, b in pairs)


def _patterns(values: torch.Tensor, grid: torch.dtype) -> Any:
    """Return the bits of values in a 16-bit dtype as whole numbers.

    Of two numbers with one sign they differ by the steps between them; of two with other signs by
    far more, also modulo 2^16.
    """
    return values.to(grid).view(-1).view(torch.int16).numpy()
