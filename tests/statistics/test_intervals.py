import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.statistics.intervals import bootstrap, mean_stderr, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe 1998 (Statistics in Medicine 17:857), Table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_published_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, n)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


@given(n=st.integers(1, 5000), data=st.data())
def test_wilson_laws(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    interval = wilson_interval(successes, n)
    mirrored = wilson_interval(n - successes, n)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    assert interval.low == pytest.approx(1 - mirrored.high, abs=1e-12)
    assert interval.high < 1 or successes == n
    assert interval.low > 0 or successes == 0
    wider = wilson_interval(successes, n, level=0.99)
    assert wider.high - wider.low > interval.high - interval.low


def test_wilson_ends_are_the_roots_of_the_score_test() -> None:
    # The definition: at an end p0, |p - p0| is z standard errors *under p0*.
    interval = wilson_interval(57, 250)
    for end in (interval.low, interval.high):
        z = abs(57 / 250 - end) / math.sqrt(end * (1 - end) / 250)
        assert z == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_wilson_refuses_counts_that_cannot_be(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"successes={successes}, n={n}"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson_interval(1, 2, level)
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap(np.ones((3, 1), dtype=np.int64), _first, seed=0, level=level)


def _first(sums: np.ndarray) -> float:
    return float(sums[0])


def _mean(sums: np.ndarray) -> float:
    return float(sums[0] / sums[1])


def _rows(values: np.ndarray) -> np.ndarray:
    return np.column_stack([values, np.ones_like(values)])


def test_bootstrap_of_a_mean_has_its_standard_error_and_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.4, 0.2, size=400)
    drawn = bootstrap(_rows(values), _mean, seed=0, resamples=4000)
    stderr = mean_stderr(values)
    assert stderr is not None
    assert drawn.stderr == pytest.approx(stderr, rel=0.05)
    assert drawn.interval.low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.1 * stderr)
    assert drawn.interval.high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.1 * stderr)


def test_bootstrap_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for repeat in range(300):
        values = rng.exponential(1.0, size=80)
        interval = bootstrap(_rows(values), _mean, seed=repeat, resamples=400).interval
        hits += interval.low <= 1.0 <= interval.high
    # 95 % nominal; percentile intervals of skewed data are known to fall a little short.
    assert 0.89 <= hits / 300 <= 0.98


def test_bootstrap_repeats_with_its_seed_and_draws_the_same_items_for_every_model() -> None:
    values = np.random.default_rng(3).random(50)
    once = bootstrap(_rows(values), _mean, seed=7)
    again = bootstrap(_rows(values), _mean, seed=7)
    other = bootstrap(_rows(values), _mean, seed=8)
    shifted = bootstrap(_rows(values + 1), _mean, seed=7)
    assert once == again
    assert once != other
    assert shifted.interval.low == pytest.approx(once.interval.low + 1)
    assert shifted.interval.high == pytest.approx(once.interval.high + 1)


def test_bootstrap_refuses_what_it_cannot_resample() -> None:
    with pytest.raises(ValueError, match="shape"):
        bootstrap(np.ones((0, 2), dtype=np.int64), _first, seed=0)
    with pytest.raises(ValueError, match="at least 2"):
        bootstrap(np.ones((3, 2), dtype=np.int64), _first, seed=0, resamples=1)


def test_one_value_has_no_standard_error() -> None:
    assert mean_stderr(np.array([0.5])) is None
    assert mean_stderr(np.array([0.0, 1.0])) == pytest.approx(0.5)
