"""Rounds of a search: their sizes, who goes on, and what they cost at most."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.search.rounds import (
    FINALISTS,
    Bound,
    Round,
    Size,
    best_first,
    bounds,
    halving,
    total,
    within_budget,
)

ONE = Size(pairs=1, comparators=4)


def test_the_rounds_of_24_settings_and_400_items():
    assert halving(24, 400) == (
        Round(50, 24, 12),
        Round(100, 12, 6),
        Round(200, 6, 3),
        Round(400, 3, 3),
    )


@given(st.integers(1, 300), st.integers(1, 3000))
def test_rounds_only_add_items_and_lose_candidates(candidates, items):
    rounds = halving(candidates, items)
    assert rounds[-1].items == items
    assert rounds[0].candidates == candidates
    assert rounds[-1].kept == min(candidates, FINALISTS)
    for first, second in itertools.pairwise(rounds):
        assert second.items > first.items
        assert second.candidates == first.kept <= first.candidates


def test_sizes_of_the_user_end_where_the_items_do():
    assert [one.items for one in halving(8, 120, (20, 60, 200, 400))] == [20, 60, 120]


def test_the_best_is_first_and_of_equal_ones_the_one_listed_first():
    scores = {"a": 0.5, "b": 0.7, "c": 0.7, "d": 0.2}
    assert best_first(scores) == ["b", "c", "a", "d"]
    assert best_first(scores, higher=False) == ["d", "a", "b", "c"]
    assert best_first(scores, lost={"b": 0.1, "c": 0.02}) == ["a", "d", "c", "b"]


def test_survivors_only_pay_for_new_items():
    rounds = (Round(50, 6, 3), Round(100, 3, 3))
    report = Size(pairs=2, comparators=5)
    assert bounds(rounds, ONE, report, (50, 50, 80 * 2)) == (
        Bound(10 * 50, 10),
        Bound(7 * 50, 7),
        Bound(11 * 80 * 2, 11),
    )


@pytest.mark.parametrize(("minutes", "number"), [(1000, 4), (43, 3), (33, 2), (0, 0)])
def test_a_budget_cuts_the_last_rounds_and_never_the_report(minutes, number):
    rounds = halving(24, 400)
    parts = bounds(rounds, ONE, ONE, (50, 50, 100, 200, 100))
    assert [part.answers for part in parts] == [1400, 800, 1000, 1400, 700]
    assert within_budget(rounds, parts, minutes, (0.5, 10.0)) == number
    assert total(parts).loads == 28 + 16 + 10 + 7 + 7
