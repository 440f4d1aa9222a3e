"""Confidence intervals of scores: Wilson's of one cell, the bootstrap's, and Wilson's of a mean.

The intervals of a difference are in `mcnemar` (two models on the same items, one cell each) and in
`means_and_p_values` (`Estimate.half_width`).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from ablations.statistics.corpus import Statistic
from ablations.statistics.means_and_p_values import Array, Estimate
from layerswap_method.frozen import Frozen


class Interval(Frozen):
    """A two-sided confidence interval of a score, on the scale of the score."""

    low: float
    """Lower end."""

    high: float
    """Upper end."""

    level: float = 0.95
    """Confidence level, in (0, 1)."""

    method: Literal["wilson", "bootstrap", "items and repeats"]
    """Wilson's binomial interval, percentiles of a seeded bootstrap, or, where items have several
    repeats, Wilson's on the effective number of items (Student's t for what is no share)."""


def score_interval(score: Estimate, level: float) -> tuple[float, float]:
    """Return the interval of a score in [0, 1]: Wilson's on the effective number of items.

    That is the number of independent items at which a binomial share has the score's variance; of
    a score of 0 or 1 it is the number of items. Source: Wilson 1927.
    """
    from scipy.stats import t

    p = min(max(score.mean, 0.0), 1.0)
    spread = p * (1 - p)
    n = spread / score.variance if score.variance > 0 and spread > 0 else score.items
    share = float(t.ppf((1 + level) / 2, score.df)) ** 2 / n
    middle = (p + share / 2) / (1 + share)
    half = math.sqrt(share * spread + share**2 / 4) / (1 + share)
    return middle - half, middle + half


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
        resamples: their number, at least 2.
    """
    items = len(counts)
    drawn = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), resamples)
    scores = statistic(drawn.astype(np.float64) @ counts.astype(np.float64))
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    interval = Interval(low=float(low), high=float(high), level=level, method="bootstrap")
    return interval, float(np.std(scores, ddof=1))
