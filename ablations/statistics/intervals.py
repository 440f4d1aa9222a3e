"""Intervals of a score over items. Knows numbers only; no model, no file, no lm-eval.

They say how far a score may move when other items of the same kind are asked. They say nothing
about another training run, seed or prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from layerswap_method.frozen import Frozen

Counts = npt.NDArray[np.int64]
"""Additive per-item statistics, shape [items, statistics]."""

DEFAULT_RESAMPLES = 1000
"""Bootstrap resamples: percentile ends at 95 % move by about 0.1 standard errors between seeds."""


@dataclass(frozen=True)
class Bootstrap:
    """The outcome of a bootstrap: the percentile interval and the standard error."""

    interval: Interval
    stderr: float


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a binomial share.

    With p = successes/n and z the two-sided normal quantile of `level`::

        (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)

    It keeps its level for small n and near 0 and 1, where the usual p ± z·se does not, and it
    always lies in [0, 1]. Source: Wilson 1927; Newcombe 1998, method 3 (no continuity
    correction).

    Raises:
        ValueError: for n < 1, successes outside [0, n], or a level outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"successes={successes}, n={n}: needed are n >= 1 and 0 <= successes <= n")
    z = _quantile(level)
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At the ends the exact value is 0 or 1; rounding must not leave it a hair inside.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return Interval(low=low, high=high, level=level, method="wilson")


def bootstrap(
    counts: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    statistic: Callable[[npt.NDArray[np.float64]], float],
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = DEFAULT_RESAMPLES,
) -> Bootstrap:
    """Return the percentile bootstrap of a corpus statistic.

    Items are drawn with replacement; `statistic` maps the *sums* of the drawn rows of `counts`
    (shape [statistics]) to the score. So any metric that is a function of sums over items can be
    resampled without touching its texts again. Equal seeds draw equal items: two models that
    were asked the same n items can be compared resample by resample.

    Args:
        counts: per item the additive statistics, shape [items, statistics].
        statistic: sums of shape [statistics] to a score.
        seed: of the resampling.
        level: of the interval, in (0, 1).
        resamples: number of resamples, at least 2.

    Raises:
        ValueError: for no items, fewer than 2 resamples, or a level outside (0, 1).
    """
    if counts.ndim != 2 or len(counts) < 1:
        raise ValueError(f"counts has shape {counts.shape}; needed is [items >= 1, statistics]")
    if resamples < 2:
        raise ValueError(f"resamples={resamples}: at least 2 are needed")
    _quantile(level)
    rng = np.random.default_rng(seed)
    n = len(counts)
    # How often each item is drawn is all that a sum needs: [resamples, items] @ [items, stats].
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=resamples)
    scores = np.array([statistic(sums) for sums in drawn @ counts.astype(np.float64)])
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return Bootstrap(
        interval=Interval(low=float(low), high=float(high), level=level, method="bootstrap"),
        stderr=float(np.std(scores, ddof=1)),
    )


def mean_stderr(values: npt.NDArray[np.float64]) -> float | None:
    """Return the standard error of a mean, sd/sqrt(n) with n-1 degrees; None for one value."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: it must lie between 0 and 1")
    return NormalDist().inv_cdf((1 + level) / 2)


class Interval(Frozen):
    """A two-sided confidence interval of a score, on the scale of the score."""

    low: float
    """Lower end."""

    high: float
    """Upper end."""

    level: float = 0.95
    """Confidence level, in (0, 1)."""

    method: Literal["wilson", "bootstrap"]
    """How it was computed: Wilson's binomial interval, or percentiles of a seeded bootstrap."""
