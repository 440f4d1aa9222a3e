"""Against known formulas, sacrebleu's own tests and simulations with known truth."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.statistics.corpus import bleu_of_sums, corpus_metric
from ablations.statistics.crossed import (
    Estimate,
    difference_interval,
    difference_p,
    estimate,
    item_values,
    score_interval,
)
from ablations.statistics.intervals import mean_stderr, wilson_interval
from ablations.statistics.paired import newcombe_interval

NORMAL = NormalDist()


def _estimate(values: np.ndarray) -> Estimate:
    """Of values of shape [task, language, items]."""
    return estimate(values[None], np.ones((1, *values.shape[:2]), dtype=bool))


def _three(first: np.ndarray, second: np.ndarray) -> tuple[Estimate, Estimate, Estimate]:
    return _estimate(first), _estimate(second), _estimate(first - second)


def test_one_cell_has_the_standard_error_of_its_mean() -> None:
    values = np.random.default_rng(0).random(40)
    found = _estimate(values[None, None])
    stderr = mean_stderr(values)
    assert stderr is not None
    assert found.value == pytest.approx(values.mean())
    assert found.variance == pytest.approx(stderr**2)
    assert found.degrees == pytest.approx(39)


def test_one_cell_of_right_and_wrong_is_nearly_wilsons_and_newcombes() -> None:
    right = (np.arange(400) % 3 == 0).astype(float)
    other = (np.arange(400) % 4 == 0).astype(float)
    wilson = wilson_interval(int(right.sum()), 400)
    found = score_interval(_estimate(right[None, None]), 0.95)
    assert found == pytest.approx((wilson.low, wilson.high), abs=0.0005)
    table = [int(((right == a) & (other == b)).sum()) for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))]
    interval = difference_interval(*_three(right[None, None], other[None, None]), 0.95)
    assert interval == pytest.approx(newcombe_interval(*table), abs=0.0005)


def test_the_three_parts_are_the_variances_of_the_three_margins() -> None:
    values = np.random.default_rng(1).random((3, 4, 7))
    margins = values.mean((1, 2)), values.mean((0, 2)), values.mean((0, 1))
    parts = [float(np.var(each, ddof=1) / len(each)) for each in margins]
    found = _estimate(values)
    assert found.variance == pytest.approx(sum(parts))
    degrees = sum(parts) ** 2 / sum(p**2 / d for p, d in zip(parts, (2, 3, 6), strict=True))
    assert found.degrees == pytest.approx(degrees)


def test_missing_cells_are_left_out_and_settings_are_averaged() -> None:
    rng = np.random.default_rng(2)
    values = rng.random((2, 2, 3, 9))
    present = np.ones((2, 2, 3), dtype=bool)
    whole = estimate(values, present)
    assert whole.value == pytest.approx(values.mean())
    assert whole.variance == pytest.approx(_estimate(values.mean(axis=0)).variance)
    present[1, 0, 2] = False
    found = estimate(values, present)
    assert found.value == pytest.approx(values[present].mean())
    assert found.variance > 0
    present[:, 1] = False
    alone = estimate(values, present)
    assert alone.value == pytest.approx(values[present].mean())


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_pooled_score_at_the_floor_or_ceiling_has_the_width_of_one_cell(value: float) -> None:
    pooled = score_interval(_estimate(np.full((2, 1, 100), value)), 0.95)
    one = wilson_interval(int(100 * value), 100)
    assert pooled == pytest.approx((one.low, one.high))
    assert pooled[1] - pooled[0] > 0.036


def test_models_that_never_differ_have_an_interval_with_a_width() -> None:
    values = np.zeros((2, 1, 100))
    low, high = difference_interval(*_three(values, values), 0.95)
    assert low == -high < -0.03
    values[:, :, ::2] = 1
    low, high = difference_interval(*_three(values, values), 0.95)
    assert low < 0 < high
    assert difference_p(*_three(values, values)) == 1.0


@given(st.integers(0, 2**32 - 1), st.floats(-1.5, 1.5), st.sampled_from([(1, 1), (3, 1), (3, 3)]))
def test_p_is_small_exactly_where_the_interval_excludes_zero(
    seed: int, gain: float, experts: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    ease = rng.normal(0, 1, 60)
    first, second = (
        (ease + rng.normal(shift, 1, (*experts, 60)) > 0).astype(float) for shift in (gain, 0)
    )
    found = _three(first, second)
    for level in (0.8, 0.95):
        low, high = difference_interval(*found, level)
        assert low - 1e-12 <= found[2].value <= high + 1e-12
        assert -1 - 1e-12 <= low <= high <= 1 + 1e-12
        assert (difference_p(*found) < 1 - level) == (low > 0 or high < 0)
    back = _three(second, first)
    low, high = difference_interval(*found, 0.95)
    assert difference_interval(*back, 0.95) == pytest.approx((-high, -low))
    assert difference_p(*back) == pytest.approx(difference_p(*found), abs=1e-9)


def _world(
    rng: np.random.Generator, items: int, spread: float, means: tuple[float, ...]
) -> list[np.ndarray]:
    """Return a model's answers per mean: 3 x 3 pairs of experts that differ by `spread`."""
    ease = rng.normal(0, 1, items)
    models = []
    for mean in means:
        task, language = rng.normal(0, spread, (3, 1, 1)), rng.normal(0, spread, (1, 3, 1))
        noise = rng.normal(0, 1, (3, 3, items))
        models.append((mean + ease + task + language + noise > 0).astype(float))
    return models


def _truth(mean: float, spread: float) -> float:
    return NORMAL.cdf(mean / (2 + 2 * spread**2) ** 0.5)


@pytest.mark.parametrize(
    ("items", "spread", "means"),
    [
        (100, 0.25, (-0.6, -0.9)),
        (250, 0.0, (0.4, 0.4)),
        (100, 0.1, (-3.2, -3.2)),  # near the floor: about one item of 100 is right
    ],
)
def test_coverage_over_experts_and_items(
    items: int, spread: float, means: tuple[float, float]
) -> None:
    rng = np.random.default_rng(13)
    trials = 400
    covered = {"score": 0, "difference": 0, "not rejected": 0}
    true = _truth(means[0], spread), _truth(means[1], spread)
    for _ in range(trials):
        found = _three(*_world(rng, items, spread, means))
        low, high = score_interval(found[0], 0.95)
        covered["score"] += low <= true[0] <= high
        low, high = difference_interval(*found, 0.95)
        covered["difference"] += low <= true[0] - true[1] <= high
        covered["not rejected"] += difference_p(*found) >= 0.05
    shares = {name: hits / trials for name, hits in covered.items()}
    assert shares["score"] >= 0.925, shares
    assert shares["difference"] >= 0.925, shares
    if means[0] == means[1]:
        assert shares["not rejected"] >= 0.925, shares


def test_items_alone_would_be_far_too_sure_where_experts_differ() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        (values,) = _world(rng, 100, 0.25, (-0.6,))
        low, high = score_interval(_estimate(values.mean((0, 1))[None, None]), 0.95)
        covered += low <= _truth(-0.6, 0.25) <= high
    assert covered / 200 < 0.8


def test_bleu_agrees_with_sacrebleus_randomization_and_bootstrap() -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    rng = np.random.default_rng(7)
    words = np.array(
        ["mtu", "watu", "kitu", "vitu", "mti", "miti", "nyumba", "jina", "mahali", "siku"]
    )
    references = [list(rng.choice(words, size=9)) for _ in range(120)]

    def translate(quality: float) -> list[str]:
        kept = rng.random((120, 9)) < quality
        return [
            " ".join(np.where(mask, words_of, rng.choice(words, size=9)))
            for mask, words_of in zip(kept, references, strict=True)
        ]

    systems = [translate(0.80), translate(0.77)]
    gold = [" ".join(each) for each in references]
    named = [("baseline", systems[0]), ("other", systems[1])]
    metric = {"BLEU": BLEU(references=[gold])}
    randomized = PairedTest(named, metric, None, test_type="ar", n_samples=2000)()[1]["BLEU"][1]
    drawn = PairedTest(named, metric, None, test_type="bs", n_samples=2000)()[1]["BLEU"][1]

    bleu = corpus_metric("bleu")
    assert bleu is not None
    counts = [bleu.counts(each, gold).astype(float)[None, None] for each in systems]
    first, second = (item_values(each, bleu_of_sums) for each in counts)
    found = _three(first, second)
    whole = [float(bleu_of_sums(each.sum(axis=(0, 1, 2)))) for each in counts]
    assert [each.value for each in found[:2]] == pytest.approx(whole)
    assert 0.03 < randomized.p_value < 0.5
    assert difference_p(*found) == pytest.approx(randomized.p_value, abs=0.04)
    assert 100 * 1.96 * found[1].variance ** 0.5 == pytest.approx(drawn.ci, rel=0.1)
