"""Against the normal approximation."""

import numpy as np
import pytest

from ablations.statistics.bootstrap import bootstrap
from ablations.statistics.intervals import mean_stderr


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def _rows(values: np.ndarray) -> np.ndarray:
    return np.column_stack([values, np.ones_like(values)])


def test_bootstrap_of_a_mean_has_its_standard_error_and_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.4, 0.2, size=400)
    interval, drawn = bootstrap(_rows(values), _mean, seed=0, resamples=4000)
    stderr = mean_stderr(values)
    assert stderr is not None
    assert drawn == pytest.approx(stderr, rel=0.05)
    assert interval.low == pytest.approx(values.mean() - 1.96 * stderr, abs=0.1 * stderr)
    assert interval.high == pytest.approx(values.mean() + 1.96 * stderr, abs=0.1 * stderr)


def test_bootstrap_repeats_with_its_seed_and_draws_the_same_items_for_every_model() -> None:
    values = np.random.default_rng(3).random(50)
    once = bootstrap(_rows(values), _mean, seed=7)
    again = bootstrap(_rows(values), _mean, seed=7)
    other = bootstrap(_rows(values), _mean, seed=8)
    shifted = bootstrap(_rows(values + 1), _mean, seed=7)
    assert once == again
    assert once != other
    assert shifted[0].low == pytest.approx(once[0].low + 1)
    assert shifted[0].high == pytest.approx(once[0].high + 1)
