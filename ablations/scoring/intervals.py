"""Intervals and standard errors of one score of one model, from the values of its items."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ablations.statistics.corpus import Statistic
from ablations.statistics.intervals import Array, Interval


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a binomial share.

    It keeps its level for small n and near 0 and 1 and lies in [0, 1]. Source: Wilson 1927;
    Newcombe 1998, method 3 (no continuity correction).

    Raises:
        ValueError: for n < 1, successes outside [0, n], or a level outside [0, 1].
    """
    from scipy.stats import binomtest

    low, high = binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(low=float(low), high=float(high), level=level, method="wilson")


def mean_stderr(values: Array) -> float | None:
    """Return the standard error of a mean, sd/sqrt(n) with n-1 degrees; None for one value."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def bootstrap(
    counts: npt.NDArray[np.int64] | Array,
    statistic: Statistic,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 1000,
) -> tuple[Interval, float]:
    """Return the percentile interval and the standard error of one model's score.

    Equal seeds draw equal items: two models with the same n items can be compared
    resample by resample.

    Args:
        counts: per item the additive statistics, shape [items, statistics].
        statistic: sums to scores.
        seed: of the resampling.
        level: of the interval, in (0, 1).
        resamples: how many, at least 2.
    """
    items = len(counts)
    drawn = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), resamples)
    scores = statistic(drawn.astype(np.float64) @ counts.astype(np.float64))
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    interval = Interval(low=float(low), high=float(high), level=level, method="bootstrap")
    return interval, float(np.std(scores, ddof=1))
