"""Rows that hardly changed go back to the base: the arithmetic of `delta_revert`, and its count.

Knows tensors and numbers; not recipes, layers or mergekit. Nothing is computed but which side a
row comes from, so a kept row is bit-identical to the expert's and a reverted one to the base's.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass

import torch

from layerswap_method.deltas.magnitudes import row_mav
from layerswap_method.deltas.rows import spread_rows


@dataclass(frozen=True)
class Kept:
    """How much of something stays the expert's."""

    rows: int
    """Rows in all."""

    kept_rows: int
    """Rows that stay the expert's, changed by fine-tuning or not."""

    weights: int
    """Weights in all."""

    kept_weights: int
    """Weights that stay the expert's."""

    @classmethod
    def of(cls, stays: torch.Tensor, weights: int) -> Kept:
        """Return what stays of a tensor of so many weights, by whether each row does."""
        rows, count = stays.numel(), int(stays.sum())
        return cls(rows, count, weights, count * (weights // rows) if rows else 0)

    @classmethod
    def whole(cls, rows: int, weights: int, *, stays: bool) -> Kept:
        """Return what stays of a tensor that is one side's altogether."""
        return cls(rows, rows if stays else 0, weights, weights if stays else 0)

    def __add__(self, other: Kept) -> Kept:
        """Return both together."""
        return Kept(*map(operator.add, astuple(self), astuple(other)))

    def record(self) -> dict[str, int | float | None]:
        """Return it for plan files and records."""
        fraction = self.kept_weights / self.weights if self.weights else None
        return {**asdict(self), "fraction": fraction}

    def describe(self) -> str:
        """Return one line with both shares and what they are of."""
        return (
            f"{self.kept_rows} of {self.rows} rows ({_percent(self.kept_rows, self.rows)}) and "
            f"{self.kept_weights} of {self.weights} weights "
            f"({_percent(self.kept_weights, self.weights)}) stay the expert's"
        )


NOTHING = Kept(0, 0, 0, 0)
"""What stays of no tensor."""


def revert_rows(
    expert: torch.Tensor, base: torch.Tensor, threshold: float, axis: int | None
) -> tuple[torch.Tensor, Kept]:
    """Return the expert with every row whose MAV is below `threshold` from the base.

    For what a MAV is see `magnitudes.row_mav`. Source: arXiv 2410.01335, section 3.3.

    Args:
        expert: floating; not modified.
        base: of its shape, dtype and device; not modified.
        threshold: 0 or more.
        axis: what `rows.input_axis` says of the tensor.

    Returns:
        The tensor, and what was kept of it. Where all rows come from one side it is that input
        itself.

    Raises:
        ValueError: for a change that is not finite.
    """
    stays = rows_that_stay(row_mav(expert, base, axis), threshold)
    found = Kept.of(stays, expert.numel())
    if found.kept_rows == found.rows:
        return expert, found
    if found.kept_rows == 0:
        return base, found
    spread = spread_rows(stays.to(expert.device), expert.shape, axis)
    return torch.where(spread, expert, base), found


def rows_that_stay(mav: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return whether each row stays the expert's: unless its MAV is below `threshold`.

    So at threshold 0 all stay.

    Raises:
        ValueError: for a change that is not finite.
    """
    if not bool(torch.isfinite(mav).all()):
        raise ValueError("a row's mean change is not finite: values are NaN or infinite")
    return ~(mav.double() < threshold)


def keep_threshold(rows: Iterable[tuple[torch.Tensor, int]], keep_fraction: float) -> float:
    """Return the largest threshold at which at least `keep_fraction` of the weights are kept.

    With the rows r sorted by MAV, the largest first, and n_r weights in each::

        threshold = MAV of the first row at which sum(n_r so far) >= keep_fraction * sum(n_r)

    Rows of equal MAV are kept together. At 1 it is the smallest MAV; at 0 a number above every
    MAV, so that nothing is kept.

    Args:
        rows: of every tensor the MAV of its rows (float32, any shape) and the weights in a row.
        keep_fraction: 0 to 1.

    Raises:
        ValueError: for a fraction outside [0, 1], no row, or a MAV that is not finite.
    """
    if not 0 <= keep_fraction <= 1:
        raise ValueError(f"keep_fraction is {keep_fraction}; it must lie between 0 and 1")
    parts = [(mav.reshape(-1).float().cpu(), size) for mav, size in rows]
    parts = [(mav, size) for mav, size in parts if mav.numel()]
    if not parts:
        raise ValueError("there is no row to keep")
    mavs = torch.cat([mav for mav, _ in parts])
    if not bool(torch.isfinite(mavs).all()):
        raise ValueError("a row's mean change is not finite")
    sizes = torch.cat([torch.full((mav.numel(),), size, dtype=torch.int64) for mav, size in parts])
    order = torch.argsort(mavs, descending=True)
    if keep_fraction == 0:
        return float(torch.nextafter(mavs[order[0]], torch.tensor(torch.inf)))
    kept = torch.cumsum(sizes[order], 0).double()
    needed = keep_fraction * float(sizes.sum())
    # A sum that falls short by rounding only is enough: 0.7 of ten equal rows are seven.
    first = int(torch.searchsorted(kept, torch.tensor(needed * (1 - 1e-12), dtype=torch.float64)))
    return float(mavs[order[min(first, len(order) - 1)]])


def summarise(tensors: Mapping[str, Kept], group_of: Callable[[str], str]) -> dict[str, Kept]:
    """Return group -> what was kept of its tensors, in the order in which groups appear."""
    found: dict[str, Kept] = defaultdict(lambda: NOTHING)
    for name, kept in tensors.items():
        found[group_of(name)] += kept
    return dict(found)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"
