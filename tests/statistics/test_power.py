"""Power: exact against enumeration, and against the tests themselves on simulated answers."""

from dataclasses import astuple

import numpy as np
import pytest

from ablations.statistics.mcnemar import mcnemar_p
from ablations.statistics.means_and_p_values import estimate
from ablations.statistics.power import (
    Design,
    Spread,
    _disagreement,
    items_needed,
    power,
    smallest_difference,
    spread_of,
)

SINGLE = Spread(items=0.0, rest=0.2, base_rate=0.5)


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
    spread = Spread(items=0.0, rest=share - difference**2, base_rate=0.5, difference=difference)
    assert power(difference, spread, Design(items), alpha) == pytest.approx(rejected, abs=1e-6)


def test_more_items_and_more_experts_see_smaller_differences():
    spread = Spread(items=0.05, rest=0.15, task=0.02**2, language=0.02**2, base_rate=0.4)
    seen = [smallest_difference(spread, Design(items, 3, 3)) for items in (100, 250, 1000)]
    assert seen == sorted(seen, reverse=True)
    by_experts = [smallest_difference(spread, Design(250, n, n)) for n in (2, 3, 5)]
    assert by_experts == sorted(by_experts, reverse=True)


def test_experts_that_differ_are_not_made_up_for_by_items():
    spread = Spread(items=0.05, rest=0.15, task=0.05**2, language=0.05**2, base_rate=0.4)
    assert items_needed(0.04, spread, Design(250, 3, 3)) is None
    assert items_needed(0.04, spread, Design(250, 30, 30)) is not None


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


@pytest.mark.parametrize(("tasks", "languages", "pair"), [(3, 3, 0), (1, 3, 0.04), (3, 1, 0.04)])
def test_power_of_experts_is_how_often_the_test_of_a_report_rejects(tasks, languages, pair):
    """The true difference is that of a single expert; its pairs vary with the other role."""
    rng = np.random.default_rng(1)
    spread = Spread(items=0.04, rest=0.12, task=0.02**2, language=0.02**2, pair=pair**2)
    design, difference, studies = Design(200, tasks, languages), 0.1, 400
    pairs = tasks * languages
    axes = [
        [f"t{n // languages}" for n in range(pairs)],
        [f"l{n % languages}" for n in range(pairs)],
    ]
    rejected = 0
    for _ in range(studies):
        cube = (
            difference
            + np.sqrt(spread.task) * rng.normal(size=(tasks, 1, 1)) * (tasks > 1)
            + np.sqrt(spread.language) * rng.normal(size=(1, languages, 1)) * (languages > 1)
            + np.sqrt(spread.pair) * rng.normal(size=(tasks, languages, 1))
            + np.sqrt(spread.items) * rng.normal(size=(1, 1, 200))
            + np.sqrt(spread.rest) * rng.normal(size=(tasks, languages, 200))
        )
        differences = cube.reshape(pairs, 200)
        rejected += estimate(differences, np.full(pairs, 1 / pairs), axes).p_value() <= 0.05
    assert rejected / studies == pytest.approx(power(difference, spread, design), abs=0.08)


@pytest.mark.parametrize("score", [0.04, 0.5, 0.96])
@pytest.mark.parametrize("gain", [0.7, 1.5])
def test_power_of_few_right_answers_is_how_often_the_test_rejects(score, gain):
    """Where few answers differ the variance grows with the difference; normal parts miss that."""
    rng = np.random.default_rng(2)
    logit, tasks, items, studies = np.log(score / (1 - score)), 4, 250, 400

    def answers(tasks, languages, items):
        shape = (tasks, languages, 1)
        common = 1.2 * rng.normal(size=items)
        logits = [
            logit
            + shift
            + common
            + 0.2 * rng.normal(size=(tasks, 1, 1))
            + 0.2 * rng.normal(size=(1, languages, 1))
            + 0.1 * rng.normal(size=shape)
            for shift in (gain * (1 if score <= 0.5 else -1), 0)
        ]
        return [
            (rng.random((*shape[:2], items)) < 1 / (1 + np.exp(-part))).astype(float)
            for part in logits
        ]

    found = []
    for _ in range(8):
        first, second = answers(40, 40, 300)
        found.append(astuple(spread_of(first - second, second.mean())))
    spread = Spread(*np.mean(found, axis=0))
    names = [
        [f"t{n // tasks}" for n in range(tasks**2)],
        [f"l{n % tasks}" for n in range(tasks**2)],
    ]
    weights = np.full(tasks**2, 1 / tasks**2)
    rejected = 0
    for _ in range(studies):
        values = np.vstack([side.reshape(-1, items) for side in answers(tasks, tasks, items)])
        test = estimate(values, np.array([*weights, *-weights]), [axis * 2 for axis in names])
        rejected += test.p_value() <= 0.05
    stated = power(spread.difference, spread, Design(items, tasks, tasks))
    assert rejected / studies == pytest.approx(stated, abs=0.08)


def test_disagreement_follows_the_odds_ratio():
    spread = Spread(items=0.05, rest=0.15, base_rate=0.3, difference=0.1)
    assert _disagreement(np.array(0.1), spread, 0.3) == pytest.approx(spread.disagreement)
    assert _disagreement(np.array([0.7, -0.3]), spread, 0.3) == pytest.approx([0.7, 0.3])


def test_a_difference_that_scores_cannot_have_is_never_seen():
    spread = Spread(items=0.05, rest=0.15, base_rate=0.4)
    assert power(0.61, spread, Design(10_000)) == 0.0
    assert power(0.59, spread, Design(10_000)) > 0.999
