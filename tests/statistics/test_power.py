"""Power: exact against enumeration, and against the tests themselves on simulated answers."""

import numpy as np
import pytest

from ablations.statistics.mcnemar import mcnemar_p
from ablations.statistics.means_and_p_values import estimate
from ablations.statistics.power import (
    Design,
    Spread,
    items_needed,
    power,
    smallest_difference,
    spread_of,
)

SINGLE = Spread(items=0.0, rest=0.2)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("difference", [0.0, 0.05, 0.1])
def test_power_of_one_pair_is_that_of_every_outcome(difference, share):
    from scipy.stats import multinomial

    items, alpha = 25, 0.05
    shares = [(share + difference) / 2, (share - difference) / 2, 1 - share]
    rejected = sum(
        multinomial.pmf([first, second, items - first - second], items, shares)
        for first in range(items + 1)
        for second in range(items + 1 - first)
        if mcnemar_p(first, second) <= alpha
    )
    spread = Spread(items=0.0, rest=share)
    assert power(difference, spread, Design(items), alpha) == pytest.approx(rejected, abs=1e-6)


def test_more_items_and_more_experts_see_smaller_differences():
    spread = Spread(items=0.05, rest=0.15, task=0.02**2, language=0.02**2)
    seen = [smallest_difference(spread, Design(items, 3, 3)) for items in (100, 250, 1000)]
    assert seen == sorted(seen, reverse=True)
    by_experts = [smallest_difference(spread, Design(250, n, n)) for n in (2, 3, 5)]
    assert by_experts == sorted(by_experts, reverse=True)


def test_experts_that_differ_are_not_made_up_for_by_items():
    spread = Spread(items=0.05, rest=0.15, task=0.05**2, language=0.05**2)
    assert items_needed(0.03, spread, Design(250, 3, 3)) is None
    assert items_needed(0.03, spread, Design(250, 60, 60)) is not None


@pytest.mark.parametrize("difference", [0.02, 0.05])
def test_so_many_items_show_a_difference_and_hardly_fewer_do(difference):
    items = items_needed(difference, SINGLE, Design(1))
    assert power(difference, SINGLE, Design(items)) >= 0.8
    assert power(difference, SINGLE, Design(int(items * 0.95))) < 0.8
    assert smallest_difference(SINGLE, Design(items)) == pytest.approx(difference, rel=0.02)


def test_no_difference_may_be_large_enough():
    assert smallest_difference(SINGLE, Design(4)) is None


def test_components_are_read_back_from_differences():
    rng = np.random.default_rng(0)
    parts = [
        0.1 * rng.normal(size=(40, 1, 1)),
        0.05 * rng.normal(size=(1, 40, 1)),
        0.3 * rng.normal(size=(1, 1, 400)),
        0.2 * rng.normal(size=(40, 40, 400)),
        0.04 * rng.normal(size=(40, 40, 1)),
    ]
    spread = spread_of(sum(parts))
    found = [spread.task, spread.language, spread.items, spread.rest, spread.pair]
    assert np.sqrt(found) == pytest.approx([0.1, 0.05, 0.3, 0.2, 0.04], rel=0.3)


def test_power_of_experts_is_how_often_the_test_of_a_report_rejects():
    rng = np.random.default_rng(1)
    spread = Spread(items=0.04, rest=0.12, task=0.02**2, language=0.02**2, is_binary=False)
    design, difference, studies = Design(200, 3, 3), 0.1, 400
    axes = [[f"t{n // 3}" for n in range(9)], [f"l{n % 3}" for n in range(9)]]
    rejected = 0
    for _ in range(studies):
        cube = (
            difference
            + np.sqrt(spread.task) * rng.normal(size=(3, 1, 1))
            + np.sqrt(spread.language) * rng.normal(size=(1, 3, 1))
            + np.sqrt(spread.items) * rng.normal(size=(1, 1, 200))
            + np.sqrt(spread.rest) * rng.normal(size=(3, 3, 200))
        )
        differences = cube.reshape(9, 200)
        rejected += estimate(differences, np.full(9, 1 / 9), axes).p_value() <= 0.05
    assert rejected / studies == pytest.approx(power(difference, spread, design), abs=0.08)
