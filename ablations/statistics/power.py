"""How large a difference must be to be seen: the power of the tests of a comparison.

A difference of two models is a mean over items, and over the task and language experts that they
are made of. Each of them is a sample, and adds to its variance what it varies by, divided by its
size. The tests are those of `mcnemar` (one pair of experts, right or wrong answers) and of
`means_and_p_values` (all others).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ablations.statistics.means_and_p_values import Array, least_variance

_STUDIES, _MOST_CELLS = 2000, 200_000
"""Simulated studies, fewer where there are over 100 pairs of experts; the standard error of a power
is .011 at the most, of 900 pairs .034."""

_STEP = 0.0005
"""How exact a smallest difference is."""


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

    base_rate: float | None = None
    """Score of the second model, in [0, 1], of right and wrong answers; None for other scores."""

    difference: float = 0.0
    """Mean difference at which all these were measured."""

    @property
    def is_binary(self) -> bool:
        """Whether answers are right or wrong."""
        return self.base_rate is not None

    @property
    def disagreement(self) -> float:
        """Mean square of a single difference.

        Of right and wrong answers, the share of items on which two models disagree.
        """
        parts = self.items + self.rest + self.task + self.language + self.pair
        return self.difference**2 + parts


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


def spread_of(differences: Array, base_rate: float | None = None) -> Spread:
    """Return what differences vary by, from the mean squares of a two-way design over items.

    Args:
        differences: shape [task experts, language experts, items], without gaps; 2 or more items.
        base_rate: mean score of the second model, if answers are right or wrong.
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
        base_rate=base_rate,
        difference=mean,
    )


@cache
def power(difference: float, spread: Spread, design: Design, alpha: float = 0.05) -> float:
    """Return the probability that a true difference has a two-sided p of `alpha` or less.

    The difference has the sign of the measured one, where scores can have it.
    One pair of experts and right or wrong answers: exactly that of McNemar's test, whose numbers of
    items that one model alone gets right are binomial. All others: the share of `_STUDIES`
    simulated studies in which the test by `means_and_p_values.estimate` rejects. What a single
    expert varies by is in no test, so it is not in the power: it is that of these experts.
    tests/benchmarks/bench_power.py compares it with the tests themselves.
    """
    size = abs(difference)
    if spread.base_rate is not None:
        if size > largest_difference(spread):
            return 0.0
        size = math.copysign(size, spread.difference)
        size = size if 0 <= spread.base_rate + size <= 1 else -size
        if design.is_single:
            share = float(_disagreement(np.array(size), spread, spread.base_rate))
            return _mcnemar_power(abs(size), share, design.items, alpha)
    from scipy.stats import t

    means, variances, df = _studies(size, spread, design)
    limits = t.ppf(1 - alpha / 2, df) * np.sqrt(variances)
    return float((np.abs(means) >= limits).mean())


def largest_difference(spread: Spread) -> float:
    """Return the largest difference that a model can have from one with this score, in (0, 1]."""
    return 1.0 if spread.base_rate is None else max(spread.base_rate, 1 - spread.base_rate)


def smallest_difference(
    spread: Spread, design: Design, alpha: float = 0.05, wanted: float = 0.8
) -> float | None:
    """Return the smallest difference whose power is `wanted`, to .0005; None if there is none."""
    steps = int(largest_difference(spread) / _STEP)
    found = _first(steps, lambda step: power(step * _STEP, spread, design, alpha) >= wanted)
    return None if found is None else found * _STEP


def items_needed(
    difference: float, spread: Spread, design: Design, alpha: float = 0.05, wanted: float = 0.8
) -> int | None:
    """Return how many items show a difference with this power; None if no number of items does.

    The experts are those of `design`: what they vary by stays, however many items there are.
    """
    return _first(
        1 << 17,
        lambda items: power(difference, spread, replace(design, items=items), alpha) >= wanted,
        exact=0.005,
    )


def experts_needed(
    difference: float,
    spread: Spread,
    design: Design,
    most: int,
    alpha: float = 0.05,
    wanted: float = 0.8,
) -> int | None:
    """Return how many experts of each role show a difference, 2 to `most`; None if these do not."""
    found = _first(
        most - 1,
        lambda n: power(difference, spread, Design(design.items, n + 1, n + 1), alpha) >= wanted,
    )
    return None if found is None else found + 1


def _first(most: int, is_enough: Callable[[int], bool], exact: float = 0.0) -> int | None:
    """Return the smallest number, up to `most`, that is enough; to a share `exact` of it.

    Numbers are doubled first: more items may be too many, as a test then has fewer degrees of
    freedom.
    """
    low, high = 0, 1
    while not is_enough(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(1, low * exact):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _disagreement(differences: Array, spread: Spread, base_rate: float) -> Array:
    """Return the share of items on which models with such differences disagree.

    The second model's score stays, and so does the odds ratio of right and wrong answers of both
    models, from which the share follows (Plackett 1965, doi:10.1080/01621459.1965.10480807).
    """
    share, measured = spread.disagreement, base_rate + spread.difference
    both = min(max((measured + base_rate - share) / 2, 0.0), measured, base_rate)
    alone = (share + spread.difference) * (share - spread.difference) / 4
    odds = both * max(1 - both - share, 0.0) / max(alone, 1e-12)
    odds = odds if abs(odds - 1) > 1e-6 else 1 + 1e-6
    first = base_rate + differences
    total = 1 + (first + base_rate) * (odds - 1)
    root = np.sqrt(np.maximum(total**2 - 4 * odds * (odds - 1) * first * base_rate, 0.0))
    found = first + base_rate - (total - root) / (odds - 1)
    shares: Array = np.clip(found, np.abs(differences), 1.0)
    return shares


def _studies(size: float, spread: Spread, design: Design) -> tuple[Array, Array, Array]:
    """Return mean difference, its variance and degrees of freedom in simulated studies.

    By the equations of `means_and_p_values.estimate`, on sums over items in place of items.
    """
    tasks, languages, items = design.task_experts, design.language_experts, design.items
    pairs = tasks * languages
    rng = np.random.default_rng(0)
    studies = min(_STUDIES, _MOST_CELLS // pairs)

    def drawn(variance: float, *shape: int) -> Array:
        return math.sqrt(variance) * rng.standard_normal((studies, *shape))

    # What one expert varies by stays the same in all its items: no test sees it. Its pairs vary
    # with the experts of the other role, so the test sees what these vary by.
    of_task = drawn(spread.task if tasks > 1 else 0.0, tasks, 1)
    of_language = drawn(spread.language if languages > 1 else 0.0, 1, languages)
    of_pair = drawn(spread.pair if pairs > 1 else 0.0, tasks, languages)
    true = size + of_task + of_language + of_pair
    if spread.base_rate is not None:
        share = float(_disagreement(np.array(size), spread, spread.base_rate))
        extreme = max(abs(1 - 2 * spread.base_rate - size), 1e-6)
        alike = math.sqrt(spread.items / max(spread.items + spread.rest, 1e-12))
        cells, over_items, single = _right_or_wrong(
            rng, true - size, size, share, alike, extreme, items
        )
    else:
        cells = true + drawn(spread.items / items, 1, 1)
        cells = cells + drawn(spread.rest / items, tasks, languages)

        def variance_of(units: int, expected: float) -> Array:
            """Return variances that are estimated from so many normal values."""
            return expected * rng.chisquare(max(units - 1, 1), studies) / max(units - 1, 1)

        over_items = variance_of(items, (spread.items + spread.rest / pairs) / items)
        single = variance_of((pairs - 1) * (items - 1) + 1, spread.rest / pairs / items)
    parts = [(over_items, max(items - 1, 1))]
    for axis, count in ((2, tasks), (1, languages)):
        if count > 1:
            parts.append((cells.mean(axis=axis).var(axis=1, ddof=1) / count, count - 1))
    total = np.sum([part for part, _ in parts], axis=0)
    largest = np.max([part for part, _ in parts], axis=0)
    variances = np.maximum(total - (len(parts) - 1) * single, largest)
    squares = np.sum([part**2 / df for part, df in parts], axis=0)
    df = (total if len(parts) > 2 else variances) ** 2 / np.maximum(squares, 1e-300)
    return cells.mean(axis=(1, 2)), variances, df


def _right_or_wrong(
    rng: np.random.Generator,
    parts: Array,
    size: float,
    share: float,
    alike: float,
    extreme: float,
    items: int,
) -> tuple[Array, Array, Array]:
    """Return means of cells, the variance over items and that of a single cell and item.

    An item favours the first model, the second or none, with the probabilities of the mean; each
    pair of experts follows it with the probability `alike`, and has else a difference of its own.
    What models get right alone is counted: where few answers differ, the variance grows with the
    difference, as it does in `estimate`. Experts move the odds of both models' wins, not below 0.

    Args:
        rng: of the studies.
        parts: of the experts, shape [studies, task experts, language experts].
        size: true difference of the study.
        share: of items on which the models disagree.
        alike: probability to follow the item: the root of the correlation of two pairs on it.
        extreme: distance of the mean score from a half, as a share: 0 for a half, 1 for 0 and 1.
        items: number of them.
    """
    means = (share + size) / 2, (share - size) / 2
    weights = [mean ** (4 * extreme) for mean in means]

    def moved(number: int) -> Array:
        """Return the probability of each pair that this model alone is right."""
        mean = max(means[number], 1e-12)
        change = (1 - 2 * number) * weights[number] / sum(weights) * parts / mean
        # Log-normal for extreme scores, of the same variance; normal for scores of a half.
        deviation = extreme * max(float(change.std()), 1e-12)
        log = extreme * change * math.sqrt(math.log1p(deviation**2)) / deviation
        factors = 1 + (np.exp(log - log.var() / 2) - 1) / extreme
        probabilities: Array = mean * np.maximum(factors, 0.0)
        return probabilities

    pairs = parts[0].size
    wins, losses = moved(0), moved(1)
    too_many = np.maximum(wins + losses, 1.0)
    wins, losses = wins / too_many, losses / too_many
    of_study = [values.mean(axis=(1, 2), keepdims=True) for values in (wins, losses)]
    favours = rng.multinomial(
        items, np.stack([*of_study, np.maximum(1 - of_study[0] - of_study[1], 0)], axis=-1)[:, 0, 0]
    )
    sums, by_item, squares = np.zeros_like(parts), 0.0, 0.0
    for number, (first, second) in zip(favours.T, ((1, 0), (0, 1), (0, 0)), strict=True):
        chance = alike * first + (1 - alike) * wins
        other = alike * second + (1 - alike) * losses
        numbers = np.broadcast_to(number[:, None, None], parts.shape)
        won = rng.binomial(numbers, chance)
        lost = rng.binomial(numbers - won, np.minimum(other / np.maximum(1 - chance, 1e-12), 1))
        found = (won - lost).astype(float)
        total, own = found.sum(axis=(1, 2)), (won + lost).sum(axis=(1, 2)).astype(float)
        some = np.maximum(number, 1)
        # Products of two pairs on one item: what their sums say, and what is left to chance.
        products = (total**2 - (found**2).sum(axis=(1, 2))) / some
        variance = np.maximum(own / (pairs * some) - (total / (pairs * some)) ** 2, 0.0)
        products += (
            variance * np.sqrt(2 * pairs * (pairs - 1) * number) * rng.standard_normal(len(own))
        )
        sums, squares = sums + found, squares + own
        by_item = by_item + np.maximum(own + products, total**2 / some) / pairs**2
    cells = sums / items + alike * (wins - losses - of_study[0] + of_study[1])
    mean = cells.mean(axis=(1, 2))
    over_items = (by_item - items * mean**2) / (items * max(items - 1, 1))
    left = squares - pairs * by_item
    left = left - items * ((cells - mean[:, None, None]) ** 2).sum(axis=(1, 2))
    single = left / max((pairs - 1) * (items - 1), 1) / (pairs * items)
    return cells, np.maximum(over_items, least_variance(items)), np.maximum(single, 0.0)


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
