"""The bootstrap over items: the interval of one model's score. Knows numbers only.

A score is a function of sums over items, so items can be drawn again without touching a text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ablations.statistics.crossed import Statistic
from ablations.statistics.intervals import Array, Interval

DEFAULT_RESAMPLES = 1000
"""For one score: percentile ends at 95 % move by about 0.1 standard errors between seeds."""


def bootstrap(
    counts: npt.NDArray[np.int64] | Array,
    statistic: Statistic,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = DEFAULT_RESAMPLES,
) -> tuple[Interval, float]:
    """Return the percentile interval and the standard error of one model's score.

    Equal seeds draw equal items: two models that were asked the same n items can be compared
    resample by resample.

    Args:
        counts: per item the additive statistics, shape [items, statistics].
        statistic: sums to scores.
        seed: of the resampling.
        level: of the interval, in (0, 1).
        resamples: number of resamples, at least 2.
    """
    items = len(counts)
    drawn = np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), resamples)
    scores = statistic(drawn.astype(np.float64) @ counts.astype(np.float64))
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    interval = Interval(low=float(low), high=float(high), level=level, method="bootstrap")
    return interval, float(np.std(scores, ddof=1))
