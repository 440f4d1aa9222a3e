"""The sums over an expert's deltas that every statistic is made of. Knows one pass; no thresholds.

Each block of each tensor is looked at once, in float32; what is summed over blocks is summed in
float64 and in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from layerswap_method.deltas.measure import for_each_tensor
from layerswap_method.deltas.pair import DeltaBlock, DeltaPair, not_finite, read_deltas

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

NEAR_STEPS = 2
"""A changed weight that is at most so many representable values of the expert's dtype away from
the base (rounded to that dtype) sits on the rounding grid: its delta is made by rounding."""

_FINE_LINES = 256
"""Lines of a block up to which columns are summed in float32."""


@dataclass
class TensorSums:
    """Sums over one tensor, for each of the experts."""

    name: str
    """The tensor."""

    rows: Array
    """[experts, rows]: MAV of every row; of a segment its sums, not yet means."""

    gram: Array
    """[experts, experts]: dot products of the deltas."""

    along_base: Array
    """[experts]: dot product of delta and base."""

    base: float
    """Sum of the base's squares."""

    size: int
    """Values."""

    changed: Counts
    """[experts]: values with a delta other than 0."""

    near: Counts
    """[experts]: those of them on the rounding grid; 0 where the expert is in float32."""


def tensor_sums(pairs: Sequence[DeltaPair], names: Iterable[str]) -> Iterator[TensorSums]:
    """Yield the sums of every tensor in `names`; the base and every expert are read once.

    Args:
        pairs: experts of one base, at least one.
        names: of ``pairs[0].names``; taken as they are needed.

    Raises:
        InputError: for files that change, and weights that are NaN or infinite.
    """
    for _, sums in for_each_tensor(names, lambda name: _sum_tensor(pairs, name)):
        _check_finite(pairs, sums)
        yield sums


def _nothing(pairs: Sequence[DeltaPair], name: str, rows: int) -> TensorSums:
    experts = len(pairs)
    return TensorSums(
        name=name,
        rows=np.zeros((experts, rows)),
        gram=np.zeros((experts, experts)),
        along_base=np.zeros(experts),
        base=0.0,
        size=math.prod(pairs[0].shape(name)),
        changed=np.zeros(experts, np.int64),
        near=np.zeros(experts, np.int64),
    )


def _check_finite(pairs: Sequence[DeltaPair], sums: TensorSums) -> None:
    if not np.isfinite(sums.base):
        raise not_finite(pairs[0], sums.name)
    for pair, change in zip(pairs, np.diag(sums.gram), strict=True):
        if not np.isfinite(change):
            raise not_finite(pair, sums.name)


def _sum_tensor(pairs: Sequence[DeltaPair], name: str) -> TensorSums:
    layout = pairs[0].layout(name)
    sums = _nothing(pairs, name, layout.features)
    for blocks in zip(*(read_deltas(pair, name) for pair in pairs), strict=True):
        base = blocks[0].base.float().view(-1)
        views = [_Views(b, base, p.grid_dtype(name)) for b, p in zip(blocks, pairs, strict=True)]
        first = (
            blocks[0].first // layout.rows * layout.columns if layout.across else blocks[0].first
        )
        sums.base += float(torch.dot(base, base))
        for i, view in enumerate(views):
            sums.along_base[i] += float(torch.dot(view.delta, base))
            for j in range(i + 1):
                sums.gram[i, j] += float(torch.dot(view.delta, views[j].delta))
        for i, view in enumerate(views):
            changed = view.count_changed()
            sums.changed[i] += changed
            if view.grid is not None:
                # The unchanged are zero steps away, so they are in the count and come off it.
                sums.near[i] += view.count_near(view.grid) - (view.flags.size - changed)
            view.delta.abs_()
            found = view.sum_columns() if layout.across else np.add.reduce(view.lines, axis=1)
            sums.rows[i, first : first + len(found)] += found
    sums.rows /= max(1, layout.width)
    upper = np.triu_indices(len(pairs), 1)
    sums.gram[upper] = sums.gram.T[upper]
    return sums


class _Views:
    """A block's memory as numpy arrays and flat tensors.

    numpy compares and counts several times faster than torch does.
    """

    def __init__(self, block: DeltaBlock, base: torch.Tensor, grid: torch.dtype | None) -> None:
        """Look at `block`; `grid` is the 16-bit dtype that its expert was rounded to, if any."""
        self.block = block
        self.grid = grid
        self.base = base
        self.delta = block.delta.view(-1)
        self.lines: npt.NDArray[np.float32] = block.delta.numpy()
        self.flags = np.empty(self.delta.numel(), np.bool_)
        self._flat = self.delta.numpy()
        if grid is not None:
            self._steps = np.empty(self.flags.size, np.int16)
            self._unsigned = self._steps.view(np.uint16)
            self._ours = block.expert.view(-1).view(torch.int16).numpy()
            if block.base.dtype == grid:
                self._theirs = block.base.view(-1).view(torch.int16).numpy()

    def count_changed(self) -> int:
        """Return the values with a delta other than 0."""
        np.not_equal(self._flat, 0, out=self.flags)
        return int(np.count_nonzero(self.flags))

    def count_near(self, grid: torch.dtype) -> int:
        """Return the values at most `NEAR_STEPS` representable numbers from the base's.

        Of two numbers with one sign the patterns of the bits differ by the steps between them; of
        two with other signs by far more, also modulo 2^16.
        """
        if self.block.base.dtype != grid:
            self._theirs = self.base.to(grid).view(torch.int16).numpy()
        np.subtract(self._ours, self._theirs, out=self._steps)
        np.add(self._steps, NEAR_STEPS, out=self._steps)
        np.less_equal(self._unsigned, 2 * NEAR_STEPS, out=self.flags)
        return int(np.count_nonzero(self.flags))

    def sum_columns(self) -> npt.NDArray[Any]:
        """Return the sum of every column, in float32 where few enough values are summed."""
        wide = np.float32 if len(self.lines) <= _FINE_LINES else np.float64
        found: npt.NDArray[Any] = np.add.reduce(self.lines, axis=0, dtype=wide)
        return found
