"""Means over items, experts and seeds, and differences of two, with their variance and p value.

A score is a mean over items, and over the task experts, language experts and seeds that a model was
made with. All of them are samples: another would have given another score. The p value of two
single models on the same items, each right or wrong, is in `mcnemar`; `report.comparisons` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-12
"""Differences and standard errors of scores from 0 to 1 below it come of rounding."""


def alpha_of(level: float) -> float:
    """Return the p below which there is evidence, where intervals have this level."""
    return round(1 - level, 12)


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of two means, with its uncertainty."""

    mean: float
    """Mean of the values; of a difference first minus second."""

    variance: float
    """Variance of `mean`, over experts, seeds and items."""

    df: float
    """Degrees of freedom of `variance`; infinite where it is 0, so where all items are the same."""

    items: int
    """Number of items."""

    def half_width(self, level: float) -> float:
        """Return half the width of Student's t; NaN where all items are the same."""
        from scipy.stats import t

        if not self.variance:
            return math.nan
        return float(t.ppf((1 + level) / 2, self.df)) * math.sqrt(self.variance)

    def p_value(self, null: float = 0.0) -> float:
        """Return the two-sided p of the hypothesis that the mean is `null`."""
        from scipy.stats import t

        distance = abs(self.mean - null)
        if distance < _ROUNDING:
            return 1.0
        if not self.variance:
            return self._same_sign
        return float(2 * t.sf(distance / math.sqrt(self.variance), self.df))

    def p_outside(self, margin: float) -> float:
        """Return p of the hypothesis that the mean lies outside of [-margin, margin].

        The larger p of two one-sided tests. Source: Schuirmann 1987. Where all items are the same,
        the chance that none of them is of those that a mean outside needs: items differ by 1 at
        most, so for a mean that is further away by r these are at least the share r.
        """
        from scipy.stats import t

        room = margin - abs(self.mean)
        if not self.variance:
            return (1 - room) ** self.items if room > 0 else 1.0
        return float(t.sf(room / math.sqrt(self.variance), self.df))

    @property
    def _same_sign(self) -> float:
        """The p of the sign test, for items (or clusters) that are all the same."""
        return 2.0 ** (1 - self.items)


def estimate(
    values: Array, weights: Array, axes: Sequence[Sequence[str]], least: float = 0.0
) -> Estimate:
    """Return a weighted sum of cells, averaged over items, with its variance.

    A mean has positive weights that sum to 1. A difference of two models has positive weights for
    the first and negative ones for the second, each summing to 1 without the sign. With r the part
    of one value in the error of the sum, weight * (value - mean of its model) / items, every axis
    (an expert's role, the seed, the items) with k units gives::

        V_axis = k/(k-1) * sum over its units of (sum of the unit's r)^2

    Units of one name on both sides are paired, others add up. The noise of a single cell and item
    is in the sum of every axis, so it is subtracted until it is counted once; the variance is never
    less than the largest V_axis. Without the subtraction this is the variance of the pigeonhole
    bootstrap (Owen 2007, arXiv 0712.1111). The degrees of freedom are Satterthwaite's (1946): of
    this variance where one axis varies besides the items, as in a two-way random design; with more
    axes of the sum of all V_axis, because so many subtractions leave too few. The coverage is
    measured in tests/benchmarks/bench_coverage.py.

    Args:
        values: shape [cells, items].
        weights: shape [cells].
        axes: for each axis but the items, the unit of every cell; empty for a cell without one. An
            axis with one unit gives nothing: one expert says nothing of how experts differ.
        least: lower bound of the variance over items, for values that hardly differ.

    A single item says nothing of how items differ, so there is no variance.
    """
    items = values.shape[1]
    if items == 1:
        return Estimate(float(weights @ values[:, 0]), 0.0, math.inf, 1)
    shares = np.zeros(values.shape)
    noise = np.zeros(values.shape)
    times = np.ones(len(values))
    sums: list[list[dict[str, float]]] = [[] for _ in axes]
    for sign in (1, -1):
        (side,) = np.nonzero(sign * weights > 0)
        if not len(side):
            continue
        weight, side_values = weights[side, None], values[side]
        by_item = (weight * side_values).sum(axis=0) / weight.sum()
        shares[side] = weight * (side_values - by_item.mean()) / items
        if len(side) > 1:
            size = len(side) * items
            by_cell = side_values.mean(axis=1, keepdims=True)
            residuals = side_values - by_cell - by_item + by_item.mean()
            scale = math.sqrt(size / ((len(side) - 1) * (items - 1)))
            noise[side] = scale * weight * residuals / items
        for axis, names in enumerate(axes):
            units = dict.fromkeys(names[cell] for cell in side if names[cell])
            if len(units) > 1:
                scale = math.sqrt(len(units) / (len(units) - 1))
                total = dict.fromkeys(units, 0.0)
                for cell in side:
                    if names[cell]:
                        total[names[cell]] += scale * float(shares[cell].sum())
                        times[cell] += 1
                sums[axis].append(total)
    parts = [part for axis in sums for part in _axis_parts(axis)]
    by_item = shares.sum(axis=0)
    over_items = float(items / (items - 1) * (by_item**2).sum())
    parts.append((max(over_items, least), items - 1))
    total_variance = sum(variance for variance, _ in parts)
    paired: dict[tuple[str, ...], list[int]] = {}
    for cell in range(len(values)):
        paired.setdefault(tuple(names[cell] for names in axes), []).append(cell)
    repeated = sum(
        float((times[cells].max() - 1) * (noise[cells].sum(axis=0) ** 2).sum())
        for cells in paired.values()
    )
    largest = max(variance for variance, _ in parts)
    variance = max(total_variance - repeated, largest)
    mean = float((weights[:, None] * values).sum() / items)
    if variance < _ROUNDING**2:
        return Estimate(mean, 0.0, math.inf, items)
    spread = sum(variance**2 / df for variance, df in parts)
    several = sum(map(bool, sums)) > 1
    df = (total_variance if several else variance) ** 2 / spread
    return Estimate(mean, variance, df, items)


def least_variance(items: int) -> float:
    """Return the least variance over items of a difference of shares of right answers.

    It is that with four items more, of which each model alone has two right: where no item differs,
    the 95 % interval is about Tango's. Pairs of experts that agree on all items are no more items,
    so their number does not count. Source: Agresti and Coull 1998, American Statistician 52:119.
    """
    return 4 / (items + 4) ** 2


def estimate_over_clusters(means: Sequence[float]) -> Estimate:
    """Return the mean over clusters (languages, bases), with the variance between them.

    Raises:
        ValueError: for fewer than two.
    """
    if len(means) < 2:
        raise ValueError("one cluster says nothing of how clusters differ")
    variance, mean = float(np.var(means, ddof=1) / len(means)), float(np.mean(means))
    if variance < _ROUNDING**2:
        return Estimate(mean, 0.0, math.inf, len(means))
    return Estimate(mean, variance, len(means) - 1, len(means))


def _axis_parts(sides: Sequence[dict[str, float]]) -> list[tuple[float, int]]:
    """Return (variance, degrees of freedom) of an axis: one part where units are paired."""
    if len(sides) == 2 and sides[0].keys() & sides[1].keys():
        names = dict.fromkeys((*sides[0], *sides[1]))
        joined = [sides[0].get(name, 0.0) + sides[1].get(name, 0.0) for name in names]
        return [(sum(total**2 for total in joined), min(map(len, sides)) - 1)]
    return [(sum(total**2 for total in side.values()), len(side) - 1) for side in sides]
