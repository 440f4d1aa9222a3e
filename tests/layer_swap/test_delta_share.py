"""The rule of `placement: delta_share`: its laws, and the published examples of its parts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.methods.delta_share import (
    choose_sources,
    delta_shares,
    dominant_sources,
    unit_norm,
)

NORMS = st.lists(st.floats(1e-6, 10), min_size=1, max_size=40)
PAIRS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        *(st.lists(st.floats(1e-6, 10), min_size=n, max_size=n) for _ in range(2)),
    )
)
TAU = st.floats(0, 0.2)
OPPOSITE = {"task": "language", "language": "task", "average": "average"}


@given(NORMS, st.floats(1e-3, 1e3))
def test_shares_sum_to_one_and_know_no_unit(norms: list[float], factor: float) -> None:
    shares = delta_shares(norms)
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    assert all(share > 0 for share in shares)
    # An expert that moved further everywhere by the same factor has the same shares.
    assert delta_shares([factor * norm for norm in norms]) == pytest.approx(shares)


@given(PAIRS, TAU)
def test_swapping_the_experts_swaps_the_sources(
    norms: tuple[list[float], list[float]], tau: float
) -> None:
    task, language = (delta_shares(side) for side in norms)
    there, back = choose_sources(task, language, tau), choose_sources(language, task, tau)
    assert back == tuple(OPPOSITE[source] for source in there)


@given(PAIRS, TAU, TAU)
def test_a_larger_threshold_only_blends_more(
    norms: tuple[list[float], list[float]], one: float, other: float
) -> None:
    task, language = (delta_shares(side) for side in norms)
    strict, lax = (choose_sources(task, language, tau) for tau in sorted((one, other)))
    assert all(after in (before, "average") for before, after in zip(strict, lax, strict=True))
    assert set(choose_sources(task, language, 1)) == {"average"}


@given(PAIRS)
def test_shares_differ_by_nothing_on_the_whole(norms: tuple[list[float], list[float]]) -> None:
    # So with threshold 0 no expert can take every unit: some go to each, or all are blended.
    task, language = (delta_shares(side) for side in norms)
    sources = choose_sources(task, language, 1e-9)
    assert {"task", "language"} <= set(sources) or set(sources) == {"average"}


def test_the_threshold_itself_is_blended() -> None:
    task, language = (0.5, 0.25, 0.25), (0.25, 0.25, 0.5)
    assert choose_sources(task, language, 0.25) == ("average",) * 3
    assert choose_sources(task, language, 0.249) == ("task", "average", "language")
    assert choose_sources(task, language) == ("task", "average", "language")


@given(PAIRS, TAU, TAU)
def test_a_larger_dominance_only_gives_more_to_the_base(
    norms: tuple[list[float], list[float]], one: float, other: float
) -> None:
    task, language = (delta_shares(side) for side in norms)
    lax, strict = (dominant_sources(task, language, d) for d in sorted((one, other)))
    assert all(after in (before, "base") for before, after in zip(lax, strict, strict=True))
    assert "average" not in lax
    back = dominant_sources(language, task, one)
    swapped = {"task": "language", "language": "task", "base": "base"}
    assert tuple(swapped[source] for source in back) == dominant_sources(task, language, one)


def test_a_share_that_is_larger_by_just_the_dominance_is_the_bases() -> None:
    assert dominant_sources((0.75, 0.25), (0.5, 0.5), 0.5) == ("base", "language")
    assert dominant_sources((0.75, 0.25), (0.5, 0.5), 0.49) == ("task", "language")
    assert dominant_sources((0.5, 0.5), (0.5, 0.5), 0.0) == ("base", "base")
    with pytest.raises(ValueError, match=r"dominance -0\.1 must be a finite number, 0 or more"):
        dominant_sources((1.0,), (1.0,), -0.1)


def test_a_layer_adds_its_tensors_and_a_module_their_squares() -> None:
    assert unit_norm([0.3, 0.4], "layer") == pytest.approx(0.7)
    assert unit_norm([0.3, 0.4], "module") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ([], "no unit"),
        ([0.0, 0.0], "every norm is 0"),
        ([1.0, -0.1], "norm -0.1 must be a finite number, 0 or more"),
        ([1.0, math.nan], "norm nan"),
    ],
)
def test_norms_without_shares(norms: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        delta_shares(norms)


def test_thresholds_and_sides_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match=r"threshold -0\.1 must be"):
        choose_sources((1.0,), (1.0,), -0.1)
    with pytest.raises(ValueError, match="shorter"):
        choose_sources((0.5, 0.5), (1.0,))
