"""Tests of two models that were asked the same items. Knows numbers only; no run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ablations.statistics.intervals import Array, wilson_interval

PERMUTATIONS = 10_000
"""For p-values: the smallest that can come out is 1 / 10,001, which a correction multiplies."""

_CHUNK = 2_000_000
"""Signs that are in memory at once."""


def mcnemar_exact(first_only: int, second_only: int) -> float:
    """Return the exact two-sided McNemar p-value.

    Of the m = `first_only` + `second_only` items that just one of two models gets right, each is
    as likely the one's as the other's if the models are equally good::

        p = min(1, 2 P(X <= min(first_only, second_only))),   X ~ Binomial(m, 1/2)

    Source: McNemar 1947; exact form as in Agresti, Categorical Data Analysis, section 11.1.
    """
    trials = first_only + second_only
    if trials == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(first_only, trials).pvalue)


def newcombe_interval(
    both: int, first_only: int, second_only: int, neither: int, level: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a difference (first minus second) of two shares on the same items.

    Newcombe's "square-and-add" for pairs: Wilson's intervals [l, u] of the two shares p and q,
    joined with their correlation phi (continuity-corrected where positive)::

        low  = (p-q) - sqrt((p-l_p)² - 2 phi (p-l_p)(u_q-q) + (u_q-q)²)
        high = (p-q) + sqrt((u_p-p)² - 2 phi (u_p-p)(q-l_q) + (q-l_q)²)

    Unlike Wald's it keeps its level for few items and near 0 and 1, and has a width where the
    models never disagree. Source: Newcombe 1998, Statistics in Medicine 17:2635, method 10.

    Raises:
        ValueError: where all counts are 0.
    """
    n = both + first_only + second_only + neither
    hits, other_hits = both + first_only, both + second_only
    first, second = wilson_interval(hits, n, level), wilson_interval(other_hits, n, level)
    p, q = hits / n, other_hits / n
    margins = hits * (n - hits) * other_hits * (n - other_hits)
    excess = float(both * neither - first_only * second_only)
    if excess > 0:
        excess = max(excess - n / 2, 0.0)
    phi = excess / math.sqrt(margins) if margins else 0.0
    below = _joined(p - first.low, second.high - q, phi)
    above = _joined(first.high - p, q - second.low, phi)
    return p - q - below, p - q + above


def _joined(one: float, other: float, phi: float) -> float:
    # Rounding may leave a hair below zero where the two cancel.
    return math.sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))


def permutation_test(differences: Array, *, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Return the two-sided p-value of a paired permutation test of the mean difference.

    If two models are equally good, an item's difference could as well have the other sign. p is
    the share of sign patterns whose sum is at least as far from zero: over all 2^m patterns of
    the m items that differ where that is no more than `permutations` (then p is exact), else
    over as many random ones, the observed pattern counted in: (1 + hits) / (1 + permutations).
    Source: Fisher 1935; Phipson and Smyth 2010 for the 1.

    Args:
        differences: per item first minus second, shape [items].
        seed: of the random patterns.
        permutations: how many of them.
    """
    moved = differences[differences != 0]
    if moved.size < 2:
        return 1.0
    from scipy.stats import permutation_test as permute

    total = float(np.abs(moved).sum())

    def distance(signed: Array, axis: int) -> Array:
        # Sums of the same numbers in another order may differ by rounding; whole numbers tie.
        whole: Array = np.rint(np.abs(signed.sum(axis=axis)) / total * 1e9)
        return whole

    found = permute(
        (moved,),
        distance,
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=max(1, _CHUNK // moved.size),
        alternative="greater",
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for all of them together, in the order given.

    The k-th smallest of m is multiplied by m-k+1, never falls below the one before, and stops at
    1. Rejecting where the result is at most alpha keeps the chance of any false rejection at
    alpha, however the tests depend on each other. Source: Holm 1979.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return tuple(adjusted)
