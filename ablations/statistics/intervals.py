"""Intervals of a score over items. Knows numbers only; no model, no file, no lm-eval.

They say how far a score may move when other items of the same kind are asked. They say nothing
about another training run, seed or prompt.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from layerswap_method.frozen import Frozen

Array = npt.NDArray[np.float64]

Counts = npt.NDArray[np.int64]
"""Additive per-item statistics, shape [items, statistics]."""


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a binomial share.

    With p = successes/n and z the two-sided normal quantile of `level` (scipy computes it)::

        (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)

    It keeps its level for small n and near 0 and 1, where the usual p ± z·se does not, and it
    always lies in [0, 1]. Source: Wilson 1927; Newcombe 1998, method 3 (no continuity
    correction).

    Raises:
        ValueError: for n < 1, successes outside [0, n], or a level outside [0, 1].
    """
    from scipy.stats import binomtest

    low, high = binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(low=float(low), high=float(high), level=level, method="wilson")


def mean_stderr(values: npt.NDArray[np.float64]) -> float | None:
    """Return the standard error of a mean, sd/sqrt(n) with n-1 degrees; None for one value."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


class Interval(Frozen):
    """A two-sided confidence interval of a score, on the scale of the score."""

    low: float
    """Lower end."""

    high: float
    """Upper end."""

    level: float = 0.95
    """Confidence level, in (0, 1)."""

    method: Literal["wilson", "bootstrap", "items and repeats"]
    """How it was computed: Wilson's binomial interval, percentiles of a seeded bootstrap, or
    Wilson's on the effective number of items where each has several repeats (`crossed`)."""
