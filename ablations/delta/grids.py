"""Layers × parameters as numbers, and how alike two such grids are. Knows no checkpoint or plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablations.drawing.grid import Array, Grid
from layerswap_method.errors import InputError

FEWEST_CELLS = 3
"""Cells that a rank correlation is given for; of fewer it says nothing."""


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's ρ between two grids, and what it rests on."""

    rho: float
    """In [-1, 1]; NaN where one of the grids is constant or too few cells are shared."""

    cells: int
    """Layer × column cells that both have."""

    num_layers: int
    """Layers that were compared: those of the shallower grid."""

    resampled_from: int | None
    """Layers of the deeper grid; None where both have the same depth."""

    def text(self) -> str:
        """Return ``Spearman ρ = 0.87 over 224 cells``, and how depths were matched."""
        rho = "undefined" if math.isnan(self.rho) else f"{self.rho:.2f}"
        told = f"Spearman ρ = {rho} over {self.cells} cells"
        if self.resampled_from is None:
            return told
        return f"{told} ({self.resampled_from} layers averaged to {self.num_layers} by depth)"


def rank_correlation(first: Grid, second: Grid) -> RankCorrelation:
    """Return Spearman's rank correlation of the cells that two grids share.

    Columns are matched by name. Grids of different depth are matched by relative depth: the
    deeper one is averaged to the layers of the shallower one, see `resample_layers`. The cells of
    one layer or parameter are not independent, so no p-value belongs to it.

    Raises:
        InputError: if the grids have no column in common.
    """
    columns = tuple(name for name in first.columns if name in second.columns)
    if not columns:
        raise InputError(
            f"{first.title} and {second.title} have no parameter in common: "
            f"{', '.join(first.columns)}; {', '.join(second.columns)}"
        )
    layers = min(first.num_layers, second.num_layers)
    deepest = max(first.num_layers, second.num_layers)
    one, other = (
        resample_layers(grid.array()[:, [grid.columns.index(name) for name in columns]], layers)
        for grid in (first, second)
    )
    known = ~(np.isnan(one) | np.isnan(other))
    return RankCorrelation(
        rho=spearman(one[known], other[known]),
        cells=int(known.sum()),
        num_layers=layers,
        resampled_from=deepest if deepest != layers else None,
    )


def resample_layers(values: Array, num_layers: int) -> Array:
    """Return values [layers, columns] as [num_layers, columns], matched by relative depth.

    Layer i of n spans the part [i/n, (i+1)/n] of the model's depth. A new layer is the mean of
    the old ones over its span, each weighted by what they share; NaN where one of them is NaN.
    """
    old = values.shape[0]
    if old == num_layers:
        return values
    # In units of 1 / (old * num_layers), in which every border is a whole number.
    starts, ends = np.arange(old) * num_layers, (np.arange(old) + 1) * num_layers
    rows = []
    for layer in range(num_layers):
        low, high = layer * old, (layer + 1) * old
        shared = np.clip(np.minimum(ends, high) - np.maximum(starts, low), 0, None)
        part = shared > 0
        rows.append((shared[part, None] * values[part]).sum(axis=0) / old)
    return np.stack(rows)


def spearman(first: Array, second: Array) -> float:
    """Return Spearman's rank correlation of two vectors; ties have their mean rank.

    NaN for fewer than `FEWEST_CELLS` values or where one vector is constant.
    """
    from scipy.stats import rankdata

    return pearson(rankdata(first), rankdata(second))


def pearson(first: Sequence[float] | Array, second: Sequence[float] | Array) -> float:
    """Return Pearson's correlation of two vectors; NaN as for `spearman`."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.size < FEWEST_CELLS or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    # Not scipy's: it warns of nearly constant vectors, as layers that hardly changed are.
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(one, other)[0, 1])
