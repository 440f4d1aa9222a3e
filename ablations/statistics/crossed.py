"""Averages over pairs of experts and over items: intervals and paired tests. Knows numbers only.

A *block* holds values of shape [settings, task experts, language experts, items], or with a last
axis of repeats, where every item was sampled several times. Experts, items and repeats are samples:
pairs that share an expert are not independent, and neither are cells that were asked the same
items. So the variance of an average has a part for each of them. Settings are no sample: they are
averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablations.statistics.intervals import Array

Mask = npt.NDArray[np.bool_]

Statistic = Callable[[Array], Array]
"""Sums over items, shape [..., statistics], to scores, shape [...]."""

_FURTHEST = 1e6
"""Quantile of Student's t at which the search for a p-value ends."""

_ROUNDING = 1e-12
"""Averages that are closer are equal."""


@dataclass(frozen=True)
class Estimate:
    """An average with its uncertainty."""

    value: float
    """The average over the cells that there are."""

    variance: float
    """Of `value`, over experts, items and repeats."""

    degrees: float
    """Degrees of freedom of `variance`, at least 1; infinite where it is 0."""

    items: int
    """Items that every cell answered."""

    def quantile(self, level: float) -> float:
        """Return the two-sided quantile of Student's t for `level`."""
        from scipy.stats import t

        return float(t.ppf((1 + level) / 2, self.degrees))


def item_values(counts: Array, statistic: Statistic, repeats: int = 1) -> Array:
    """Return what every item adds to its cell's score, shape [..., items]; their mean is the score.

    With several repeats the shape is [..., items, repeats], and each repeat is a score by itself.

    A count of one column is a value by itself. Of a corpus metric (BLEU) the jackknife's pseudo-
    values are taken, moved to the mean of the score: n s - (n-1) s_i, with s_i the score without
    item i. Source: Efron and Tibshirani 1993, chapter 11.

    Args:
        counts: additive statistics, shape [..., items, repeats x statistics], those of a repeat
            side by side.
        statistic: a cell's sums over items to its score, of one repeat.
        repeats: samples of every item.
    """
    if repeats > 1:
        single = np.moveaxis(counts.reshape(*counts.shape[:-1], repeats, -1), -2, 0)
        return np.stack([item_values(each, statistic) for each in single], axis=-1)
    if counts.shape[-1] == 1:
        return counts[..., 0]
    sums = counts.sum(axis=-2, keepdims=True)
    if counts.shape[-2] < 2:
        return statistic(sums)
    without = -(counts.shape[-2] - 1) * statistic(sums - counts)
    return np.asarray(without - without.mean(axis=-1, keepdims=True) + statistic(sums))


def estimate(values: Array, present: Mask) -> Estimate:
    """Return the average over the cells that are `present`, and its variance.

    With r the share of one value in the error of the average, (value - average) / (cells x items),
    and k units of a kind (task experts, language experts, items, repeats), that kind gives::

        V_kind = k/(k-1) sum over its units of (sum of the unit's r)²

    and the variance is the sum of all. What two kinds have in common is counted twice, which
    is on the safe side, as in the pigeonhole bootstrap (Owen 2007, arXiv 0712.1111). A kind of one
    unit gives nothing: one expert says nothing of how experts differ. The degrees of freedom are
    Satterthwaite's (1946), V² / sum of V_kind²/(k-1): with three experts a role they are few, and
    intervals from them are wide.

    Args:
        values: shape [settings, task experts, language experts, items], or with repeats after
            them.
        present: which cells there are, shape [settings, task experts, language experts].
    """
    if values.ndim == present.ndim + 1:
        values = values[..., None]
    items, repeats = values.shape[-2:]
    cells = present.sum()
    weights = present.sum(axis=0) / cells
    sums = np.where(present[..., None, None], values, 0.0).sum(axis=0) / cells
    average = float(sums.mean(axis=(-2, -1)).sum())
    error = (sums - weights[..., None, None] * average) / (items * repeats)
    parts = []
    for axis, units in enumerate((*_units(weights), items, repeats)):
        if units > 1:
            others = tuple(each for each in range(4) if each != axis)
            total = float((error.sum(axis=others) ** 2).sum())
            parts.append((total * units / (units - 1), units - 1))
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / degrees for part, degrees in parts)
    degrees = max(variance**2 / spread, 1.0) if spread > 0 else math.inf
    return Estimate(average, variance, degrees, items)


def score_interval(found: Estimate, level: float) -> tuple[float, float]:
    """Return the interval of a score in [0, 1]: Wilson's on the effective number of items.

    That number is p (1-p) / V: as many independent items would give the same variance. Where all
    values are equal there is no V to go by, and it is the number of items, as if all cells
    answered alike. So the interval lies in [0, 1], and has a width at 0 and 1. Source: Franco,
    Little, Louis and Slud 2019 (Journal of Survey Statistics and Methodology 7:334); Student's t
    takes the place of the normal quantile.
    """
    return _wilson(found, found.quantile(level))


def difference_interval(
    first: Estimate, second: Estimate, difference: Estimate, level: float
) -> tuple[float, float]:
    """Return the interval of first minus second, two scores of the same items and experts.

    Newcombe's square-and-add for pairs (see `paired.newcombe_interval`), with the intervals of
    `score_interval` and the correlation that the three variances imply. Source: Newcombe 1998;
    Zou and Donner 2008 (Statistics in Medicine 27:1693) for estimates in general.

    Args:
        first: of the first score.
        second: of the second score.
        difference: of first minus second, cell by cell and item by item.
        level: of the interval, in (0, 1).
    """
    return _square_and_add(first, second, difference, difference.quantile(level))


def difference_p(first: Estimate, second: Estimate, difference: Estimate) -> float:
    """Return the two-sided p-value: 1 minus the level at which the interval reaches zero.

    So p is below 0.05 exactly where `difference_interval` at 0.95 excludes zero: both have the same
    uncertainty.
    """
    from scipy.optimize import brentq
    from scipy.stats import t

    gap = first.value - second.value
    if abs(gap) < _ROUNDING:
        return 1.0
    end, sign = (0, 1) if gap > 0 else (1, -1)

    def distance(quantile: float) -> float:
        return sign * _square_and_add(first, second, difference, quantile)[end]

    reached = _FURTHEST
    if distance(_FURTHEST) < 0:
        reached = float(brentq(distance, 0.0, _FURTHEST, xtol=1e-10))
    return float(2 * t.sf(reached, difference.degrees))


def square_and_add(
    values: tuple[float, float],
    first: tuple[float, float],
    second: tuple[float, float],
    correlation: float,
) -> tuple[float, float]:
    """Return the interval of a difference from the `values`, intervals and correlation of two.

    ::

        low  = (p-q) - sqrt((p-l_p)² - 2 phi (p-l_p)(u_q-q) + (u_q-q)²)
        high = (p-q) + sqrt((u_p-p)² - 2 phi (u_p-p)(q-l_q) + (q-l_q)²)
    """
    p, q = values

    def joined(one: float, other: float) -> float:
        # Rounding may leave a hair below zero where the two cancel.
        return math.sqrt(max(one * one - 2 * correlation * one * other + other * other, 0.0))

    below, above = joined(p - first[0], second[1] - q), joined(first[1] - p, q - second[0])
    return p - q - below, p - q + above


def _units(weights: Array) -> tuple[int, int]:
    there = weights > 0
    return int(there.any(axis=1).sum()), int(there.any(axis=0).sum())


def _wilson(found: Estimate, quantile: float) -> tuple[float, float]:
    p = min(max(found.value, 0.0), 1.0)
    spread = p * (1 - p)
    n = spread / found.variance if found.variance > 0 and spread > 0 else found.items
    share = quantile**2 / n
    middle = (p + share / 2) / (1 + share)
    half = math.sqrt(share * spread + share**2 / 4) / (1 + share)
    return middle - half, middle + half


def _square_and_add(
    first: Estimate, second: Estimate, difference: Estimate, quantile: float
) -> tuple[float, float]:
    scale = math.sqrt(first.variance * second.variance)
    shared = (first.variance + second.variance - difference.variance) / 2
    if shared > 0:  # Newcombe's correction: models that agree on all items may differ on others
        shared = max(shared - 1 / (2 * difference.items**2), 0.0)
    correlation = min(max(shared / scale, -1.0), 1.0) if scale > 0 else 0.0
    intervals = _wilson(first, quantile), _wilson(second, quantile)
    return square_and_add((first.value, second.value), *intervals, correlation)
