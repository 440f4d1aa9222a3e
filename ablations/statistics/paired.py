"""Tests and intervals for models that were asked the same items. Knows numbers only; no run.

The arrays here are *blocks*: additive statistics of shape [settings, task experts, language
experts, items, statistics]. A score is a function of a cell's sums over items, so items can be
drawn again without touching a text, and two blocks that share their draws are paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablations.statistics.intervals import wilson_interval

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

Statistic = Callable[[Array], Array]
"""Sums over items, shape [..., statistics], to scores, shape [...]."""

BOOTSTRAP_RESAMPLES = 2000
"""For intervals."""

PERMUTATIONS = 10_000
"""For p-values: the smallest that can come out is 1 / 10,001, which a correction multiplies."""

_CHUNK = 2_000_000
"""Numbers of a resampling that are in memory at once."""


def mcnemar_exact(first_only: int, second_only: int) -> float:
    """Return the exact two-sided McNemar p-value.

    Of the m = `first_only` + `second_only` items that just one of two models gets right, each is
    as likely the one's as the other's if the models are equally good::

        p = min(1, 2 P(X <= min(first_only, second_only))),   X ~ Binomial(m, 1/2)

    Source: McNemar 1947; exact form as in Agresti, Categorical Data Analysis, section 11.1.

    Raises:
        ValueError: for a negative count.
    """
    if min(first_only, second_only) < 0:
        raise ValueError(f"counts {first_only} and {second_only}: they cannot be negative")
    trials = first_only + second_only
    tail = sum(math.comb(trials, k) for k in range(min(first_only, second_only) + 1))
    return float(min(1.0, 2 * tail / 2**trials))


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
        ValueError: for negative counts, or none at all.
    """
    table = (both, first_only, second_only, neither)
    n = sum(table)
    if min(table) < 0 or n == 0:
        raise ValueError(f"counts {table}: needed are four that are not negative, with a sum > 0")
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
    observed = abs(float(moved.sum()))
    # Sums of the same numbers in another order may differ by rounding; ties count as hits.
    bar = observed - 1e-9 * max(float(np.abs(moved).sum()), 1e-300)
    if len(moved) < 63 and 2 ** len(moved) <= permutations:
        patterns = np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float((np.abs((1.0 - 2.0 * patterns) @ moved) >= bar).mean())
    rng = np.random.default_rng(seed)
    hits, left = 0, permutations
    while left:
        rows = min(left, max(1, _CHUNK // len(moved)))
        signs = rng.integers(0, 2, size=(rows, len(moved)), dtype=np.int8).astype(np.float64)
        # sum(±d) = sum(d) - 2 sum(of those turned)
        hits += int((np.abs(moved.sum() - 2 * (signs @ moved)) >= bar).sum())
        left -= rows
    return (1 + hits) / (1 + permutations)


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
