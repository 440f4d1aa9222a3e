"""How large a difference must be to be seen: the power of the tests of a comparison.

A difference of two models is a mean over items, and over the task and language experts that they
are made of. Each of them is a sample, and adds to its variance what it varies by, divided by its
size. The tests are those of `mcnemar` (one pair of experts, right or wrong answers) and of
`means_and_p_values` (all others).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ablations.statistics.means_and_p_values import Array

_STUDIES = 2000
"""Simulated studies; the standard error of a power is .011 at the most."""


@dataclass(frozen=True)
class Spread:
    """What a difference varies by, as variances on the scale of the score.

    With d[t, l, i] the difference of task expert t and language expert l on item i, it is a mean,
    a part of each expert, of each pair of them, and of each item, and the rest.
    """

    items: float
    """Variance of an item's part."""

    rest: float
    """Variance of what is left of a single difference: one pair of experts on one item."""

    task: float = 0.0
    """Variance of a task expert's part; 0 where it is not known."""

    language: float = 0.0
    """Variance of a language expert's part; 0 where it is not known."""

    pair: float = 0.0
    """Variance of the part of a pair of experts, beyond those of each; 0 where it is not known."""

    is_binary: bool = True
    """Whether answers are right or wrong."""

    @property
    def disagreement(self) -> float:
        """Variance of a single difference.

        Of right or wrong answers of two models that are about as good, it is the share of items on
        which they disagree.
        """
        return self.items + self.rest


@dataclass(frozen=True)
class Design:
    """How much is evaluated: items, and the experts of each role."""

    items: int
    task_experts: int = 1
    language_experts: int = 1

    @property
    def is_single(self) -> bool:
        """Whether there is one pair of experts, which says nothing of how experts differ."""
        return self.task_experts == self.language_experts == 1


def spread_of(differences: Array, *, is_binary: bool = True) -> Spread:
    """Return what differences vary by, from the mean squares of a two-way design over items.

    Args:
        differences: shape [task experts, language experts, items], without gaps; 2 or more items.
        is_binary: whether the answers are right or wrong.
    """
    tasks, languages, items = differences.shape
    cells, by_item = differences.mean(axis=2), differences.mean(axis=(0, 1))
    mean = float(differences.mean())
    left = differences - cells[:, :, None] - by_item + mean
    rest = float((left**2).sum() / ((cells.size - 1) * (items - 1))) if cells.size > 1 else 0.0
    pair = 0.0
    if tasks > 1 and languages > 1:
        together = cells - cells.mean(axis=1, keepdims=True) - cells.mean(axis=0) + mean
        spread = float((together**2).sum() / ((tasks - 1) * (languages - 1)))
        pair = max(spread - rest / items, 0.0)

    def component(values: Array, noise: float) -> float:
        """Return the variance between units, whose means have this variance of noise."""
        spread = float(values.var(ddof=1)) if values.size > 1 else 0.0
        return max(spread - noise, 0.0)

    of_pair = pair + rest / items
    return Spread(
        items=component(by_item, rest / cells.size),
        rest=rest,
        task=component(cells.mean(axis=1), of_pair / languages),
        language=component(cells.mean(axis=0), of_pair / tasks),
        pair=pair,
        is_binary=is_binary,
    )


def power(difference: float, spread: Spread, design: Design, alpha: float = 0.05) -> float:
    """Return the probability that a true difference has a two-sided p of `alpha` or less.

    One pair of experts and right or wrong answers: exactly that of McNemar's test, whose numbers of
    items that one model alone gets right are binomial. All others: the share of `_STUDIES` studies,
    simulated with normal parts, in which the test by `means_and_p_values.estimate` rejects. What a
    single expert varies by is in no test, so it is not in the power: it is that of these experts.
    tests/benchmarks/bench_power.py compares it with the tests themselves.
    """
    size = abs(difference)
    if design.is_single and spread.is_binary:
        share = min(max(spread.disagreement, size), 1.0)
        return _mcnemar_power(size, share, design.items, alpha)
    from scipy.stats import t

    errors, variances, df = _studies(_around(spread, size), design)
    limits = t.ppf(1 - alpha / 2, df) * np.sqrt(variances)
    return float((np.abs(size + errors) >= limits).mean())


def smallest_difference(
    spread: Spread, design: Design, alpha: float = 0.05, wanted: float = 0.8
) -> float | None:
    """Return the smallest difference whose power is `wanted`, in (0, 1]; None if there is none."""
    if power(1.0, spread, design, alpha) < wanted:
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        if power(middle, spread, design, alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def items_needed(
    difference: float, spread: Spread, design: Design, alpha: float = 0.05, wanted: float = 0.8
) -> int | None:
    """Return how many items show a difference with this power; None if no number of items does.

    The experts are those of `design`: what they vary by stays, however many items there are.
    """
    low, high = 1, 1 << 20
    if power(difference, spread, replace(design, items=high), alpha) < wanted:
        return None
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        if power(difference, spread, replace(design, items=middle), alpha) < wanted:
            low = middle
        else:
            high = middle
    return high


def _around(spread: Spread, difference: float) -> Spread:
    """Return the spread of items around a difference: right or wrong answers vary by less then."""
    if not spread.is_binary:
        return spread
    largest = max(spread.disagreement, difference)
    share = max(largest - difference**2, 1e-6) / max(spread.disagreement, 1e-12)
    return replace(spread, items=spread.items * share, rest=spread.rest * share)


def _studies(spread: Spread, design: Design) -> tuple[Array, Array, Array]:
    """Return error, variance and degrees of freedom of the mean difference in simulated studies.

    By the equations of `means_and_p_values.estimate`, on means of cells in place of items.
    """
    tasks, languages, items = design.task_experts, design.language_experts, design.items
    pairs = tasks * languages
    rng = np.random.default_rng(0)

    def drawn(variance: float, *shape: int) -> Array:
        return math.sqrt(variance) * rng.standard_normal((_STUDIES, *shape))

    def variance_of(units: int, expected: float) -> Array:
        """Return variances that are estimated from so many normal values."""
        return expected * rng.chisquare(units - 1, _STUDIES) / (units - 1)

    # What one expert varies by stays the same in all its items: no test sees it.
    of_task = drawn(spread.task if tasks > 1 else 0.0, tasks, 1)
    of_language = drawn(spread.language if languages > 1 else 0.0, 1, languages)
    of_pair = spread.pair if tasks > 1 and languages > 1 else 0.0
    cells = of_task + of_language + drawn(of_pair + spread.rest / items, tasks, languages)
    errors = cells.mean(axis=(1, 2)) + drawn(spread.items / items)
    parts = [(variance_of(items, (spread.items + spread.rest / pairs) / items), items - 1)]
    for axis, count in ((2, tasks), (1, languages)):
        if count > 1:
            parts.append((cells.mean(axis=axis).var(axis=1, ddof=1) / count, count - 1))
    total = np.sum([part for part, _ in parts], axis=0)
    # Two values at least, as one pair has nothing left over, which is not looked at.
    single = variance_of(max(2, (pairs - 1) * (items - 1) + 1), spread.rest / pairs / items)
    largest = np.max([part for part, _ in parts], axis=0)
    variances = np.maximum(total - (len(parts) - 1) * single, largest)
    squares = np.sum([part**2 / df for part, df in parts], axis=0)
    df = (total if len(parts) > 2 else variances) ** 2 / np.maximum(squares, 1e-300)
    return errors, variances, df


def _mcnemar_power(difference: float, share: float, items: int, alpha: float) -> float:
    """Return the power of McNemar's exact test, from the binomial numbers of its two counts."""
    from scipy.stats import binom

    if share <= 0:
        return 0.0
    counts = np.arange(items + 1)
    weights = binom.pmf(counts, items, share)
    counts, weights = counts[weights > 1e-9], weights[weights > 1e-9]
    # Most wins of one model that are still rejected as too few: P(X <= k) <= alpha / 2.
    low = binom.ppf(alpha / 2, counts, 0.5)
    low = np.where(binom.cdf(low, counts, 0.5) <= alpha / 2 * (1 + 1e-12), low, low - 1)
    first = (1 + difference / share) / 2
    rejected = binom.cdf(low, counts, first) + binom.sf(counts - low - 1, counts, first)
    return float((weights * np.where(low >= 0, rejected, 0.0)).sum())
