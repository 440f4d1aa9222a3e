"""The bootstrap over items and experts: draws, resampled scores, intervals. Knows numbers only.

The arrays here are *blocks*: additive statistics of shape [settings, task experts, language
experts, items, statistics]. A score is a function of a cell's sums over items, so items can be
drawn again without touching a text, and two blocks that share their draws are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablations.statistics.intervals import Array, Interval

Mask = npt.NDArray[np.bool_]

Statistic = Callable[[Array], Array]
"""Sums over items, shape [..., statistics], to scores, shape [...]."""

BOOTSTRAP_RESAMPLES = 2000
"""For intervals of a report."""

DEFAULT_RESAMPLES = 1000
"""For one score: percentile ends at 95 % move by about 0.1 standard errors between seeds."""

_CHUNK = 2_000_000
"""Numbers of a resampling that are in memory at once."""


@dataclass(frozen=True)
class Draws:
    """Which items and experts are drawn, and how often, in each resample."""

    items: Array
    """Shape [resamples, items]."""

    task: Array
    """Shape [resamples, task experts]."""

    language: Array
    """Shape [resamples, language experts]."""


def draw(
    shape: Sequence[int],
    *,
    seed: int,
    experts: bool = True,
    resamples: int = BOOTSTRAP_RESAMPLES,
) -> Draws:
    """Return the draws for blocks of `shape` [settings, task, language, items, statistics].

    Items are drawn with replacement, the same for all cells; with `experts` the task experts and
    the language experts too, each by themselves, because pairs that share an expert are not
    independent (the pigeonhole bootstrap, Owen 2007, arXiv 0712.1111). Of k experts k-1 are
    drawn: with few of them k draws would make the variance (k-1)/k too small (Rao and Wu 1988).
    A single expert is kept: one says nothing of how experts differ.
    """
    _, task, language, items, _ = shape
    rng = np.random.default_rng(seed)

    def weights(number: int, drawn: int) -> Array:
        chances = np.full(number, 1 / number)
        return rng.multinomial(drawn, chances, size=resamples).astype(np.float64)

    drawn_items = weights(items, items)
    return Draws(
        items=drawn_items,
        task=weights(task, task - 1) if experts and task > 1 else np.ones((resamples, task)),
        language=weights(language, language - 1)
        if experts and language > 1
        else np.ones((resamples, language)),
    )


def resampled_scores(counts: Array, present: Mask, statistic: Statistic, draws: Draws) -> Array:
    """Return the average score over cells in every resample, shape [resamples].

    Args:
        counts: a block; see the head of this file.
        present: which cells there are, shape [settings, task experts, language experts].
        statistic: a cell's sums over items to its score.
        draws: from `draw`, for the shape of `counts`.
    """
    settings, task, language, items, width = counts.shape
    flat = counts.reshape(-1, items, width).transpose(1, 0, 2).reshape(items, -1)
    averages = []
    step = max(1, _CHUNK // flat.shape[1])
    for start in range(0, len(draws.items), step):
        part = slice(start, start + step)
        sums = (draws.items[part] @ flat).reshape(-1, settings, task, language, width)
        experts = draws.task[part, None, :, None] * draws.language[part, None, None, :]
        weights = present * experts
        totals = weights.sum(axis=(1, 2, 3))
        scores = np.where(present, statistic(sums), 0.0)
        # Where cells are missing, all that a resample drew may be missing ones: it says nothing.
        kept = totals > 0
        averages.append((weights * scores).sum(axis=(1, 2, 3))[kept] / totals[kept])
    return np.concatenate(averages)


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
    block = counts.astype(np.float64)[None, None, None]
    draws = draw(block.shape, seed=seed, resamples=resamples)
    scores = resampled_scores(block, np.ones((1, 1, 1), dtype=np.bool_), statistic, draws)
    low, high = percentile_interval(scores, level)
    interval = Interval(low=low, high=high, level=level, method="bootstrap")
    return interval, float(np.std(scores, ddof=1))


def percentile_interval(scores: Array, level: float) -> tuple[float, float]:
    """Return the middle `level` of resampled scores."""
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_p_value(differences: Array, observed: float) -> float:
    """Return the two-sided p-value of a paired bootstrap.

    The resampled differences, moved to a mean of zero, stand for what chance does if the models
    are equally good; p is the share of them that is at least as far from zero as `observed`, the
    observed one counted in. Source: Koehn 2004 (EMNLP) for the resampling, Efron and Tibshirani
    1993, section 16.4, for the shift. sacrebleu's paired bootstrap takes absolute values before
    it shifts, which makes its p about half of this one; its approximate randomization agrees.

    Args:
        differences: of the score, shape [resamples].
        observed: the difference on the items as they are.
    """
    centred = np.abs(differences - differences.mean())
    hits = int((centred >= abs(observed) - 1e-12).sum())
    return (1 + hits) / (1 + len(differences))
