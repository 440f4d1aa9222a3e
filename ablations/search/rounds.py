"""Successive halving: how many models answer how many items in each round, and who goes on.

Source: Karnin, Koren and Somekh 2013 (sequential halving), with rounds that are prefixes of one
order of items, so that every comparison of a round is paired, and survivors only add items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

FINALISTS = 3
"""Settings that answer the items that report: the winner and two runners-up."""

FIRST = 50
"""Items of the first round by default; each later round has twice as many."""


class Round(NamedTuple):
    """One round of a search."""

    items: int
    """Items of each task that its models have answered at its end, from the first."""

    candidates: int
    """Settings that answer them."""

    kept: int
    """Settings that go on."""


def halving(candidates: int, items: int, sizes: Sequence[int] = ()) -> tuple[Round, ...]:
    """Return the rounds of a search: each keeps half, the last one `FINALISTS`.

    Args:
        candidates: settings at the start, at least 1.
        items: that choose, at least 1.
        sizes: items of the rounds, increasing; none: 50, 100, 200 and so on, and then all.
    """
    if not sizes:
        doubled = []
        size = FIRST
        while size < items:
            doubled.append(size)
            size *= 2
        sizes = (*doubled, items)
    within = tuple(dict.fromkeys(min(size, items) for size in sizes))
    rounds, left = list[Round](), candidates
    for number, size in enumerate(within):
        is_last = number + 1 == len(within)
        kept = min(left, FINALISTS if is_last else max(FINALISTS, (left + 1) // 2))
        rounds.append(Round(size, left, kept))
        left = kept
    return tuple(rounds)


def best_first(
    scores: Mapping[str, float],
    *,
    higher: bool = True,
    lost: Mapping[str, float] | None = None,
) -> list[str]:
    """Return candidates with the best first; of equal scores the one that is listed first.

    Args:
        scores: candidate -> score on the objective.
        higher: whether a higher score is better.
        lost: candidate -> how far it is below a floor, 0 for none: all that are above come first.
    """
    sign = -1 if higher else 1
    below = lost or {}
    return sorted(scores, key=lambda name: (below.get(name, 0.0), sign * scores[name]))


class Bound(NamedTuple):
    """The most that a search, or a part of it, costs."""

    answers: int
    loads: int
    """How often a model is loaded: each once a round."""

    def __add__(self, other: object) -> Bound:
        """Return the sum of two parts."""
        assert isinstance(other, Bound)
        return Bound(self.answers + other.answers, self.loads + other.loads)


class Size(NamedTuple):
    """Numbers of models in one phase of a search."""

    pairs: int
    """Models that a candidate is: one for each pair of experts."""

    comparators: int
    """Models that are never dropped."""


def bound_of_round(candidates: int, new_items: int, size: Size) -> Bound:
    """Return what a round costs at most in which every model answers `new_items`."""
    models = candidates * size.pairs + size.comparators
    return Bound(models * new_items, models)


def bounds(
    rounds: Sequence[Round], choose: Size, report: Size, new_items: Sequence[int]
) -> tuple[Bound, ...]:
    """Return the bound of every round, and last that of the report.

    Args:
        rounds: of the search.
        choose: of every round.
        report: of the report.
        new_items: that a model answers in each round, over all tasks, and last in the report.
    """
    parts = [
        bound_of_round(one.candidates, items, choose)
        for one, items in zip(rounds, new_items[:-1], strict=True)
    ]
    return (*parts, bound_of_round(rounds[-1].kept, new_items[-1], report))


def total(parts: Iterable[Bound]) -> Bound:
    """Return the sum of bounds."""
    whole = Bound(0, 0)
    for part in parts:
        whole += part
    return whole


def within_budget(
    rounds: Sequence[Round], parts: Sequence[Bound], minutes: float, rate: tuple[float, float]
) -> int:
    """Return how many rounds fit a budget together with the report; 0 where none does.

    Args:
        rounds: of the search.
        parts: their bounds and that of the report, from `bounds`.
        minutes: for all of it.
        rate: seconds of an answer, and of a load.
    """

    def fits(number: int) -> bool:
        whole = total([*parts[:number], parts[-1]])
        return whole.answers * rate[0] + whole.loads * rate[1] <= 60 * minutes

    return max((number for number in range(1, len(rounds) + 1) if fits(number)), default=0)
