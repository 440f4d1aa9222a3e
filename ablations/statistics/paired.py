"""Tests of two models that were asked the same items. Knows numbers only; no run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ablations.statistics.crossed import square_and_add
from ablations.statistics.intervals import wilson_interval


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
    joined by `crossed.square_and_add` with their correlation phi, continuity-corrected where
    positive.

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
    return square_and_add((p, q), (first.low, first.high), (second.low, second.high), phi)


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
