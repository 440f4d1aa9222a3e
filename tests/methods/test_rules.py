"""The rules as numbers: shares, weights by the inverse of the change, and the threshold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.methods.delta_revert import keep_threshold
from layerswap_method.methods.delta_share import (
    choose_source,
    delta_shares,
    inverse_mav,
    magnitude_weights,
    unit_norm,
)


def test_what_stands_on_the_line():
    pairs = [(0.5, 0.25), (0.25, 0.25), (0.25, 0.5)]
    assert [choose_source(*pair, 0.25) for pair in pairs] == ["average"] * 3
    for rule in ((0.249,), ()):
        assert [choose_source(*pair, *rule) for pair in pairs] == ["task", "average", "language"]
    pairs = [(0.75, 0.5), (0.25, 0.5)]
    assert [choose_source(*pair, dominance=0.5) for pair in pairs] == ["base", "language"]
    assert [choose_source(*pair, dominance=0.49) for pair in pairs] == ["task", "language"]
    assert choose_source(0.5, 0.5, dominance=0.0) == "base"
    assert unit_norm([0.3, 0.4], "layer") == pytest.approx(0.7)
    assert unit_norm([0.3, 0.4], "module") == pytest.approx(0.5)


@pytest.mark.parametrize("call", [lambda: delta_shares([]), lambda: keep_threshold([], 0.5)])
def test_numbers_that_mean_nothing(call):
    with pytest.raises(ValueError, match=r"no (unit|feature)"):
        call()


def test_examples_of_weights():
    """A weight has six digits: what is printed is what is used."""
    assert inverse_mav(1.9e-5) == 52631.6
    many = magnitude_weights(["task", *["language"] * 12], [1] * 13, [1e-5, *[2e-5] * 12])
    assert many[1] == (1e5, 5e4), "many experts of a role do not outvote one"
    assert magnitude_weights(["task", "language"], [1, 1], [2e-5, 1e-5])[0] == (5e4, 1e5)
    found = magnitude_weights(["task", "language"], [1, 3], [2e-5, 1e-5], (1.0, 0.5))
    assert found == ((5e4, 3e5), (5e4, 5e4))
    roles = ["task", "task", "language"]
    assert magnitude_weights(roles, [0, 1, 1], [None, 1e-5, 1e-5]) == ((0, 1e5, 1e5), (1e5, 1e5))


FEATURES = st.lists(
    st.tuples(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@given(FEATURES, st.floats(0, 1))
def test_at_least_the_fraction_is_kept_and_no_higher_threshold_does(features, fraction):
    tensors = [(torch.tensor(mavs, dtype=torch.float32), size) for mavs, size in features]
    threshold = keep_threshold(tensors, fraction)
    flat = [(float(mav), size) for mavs, size in tensors for mav in mavs]
    total = sum(size for _, size in flat)

    def kept(limit):
        return sum(size for mav, size in flat if mav >= limit)

    assert kept(threshold) >= fraction * total - 1e-9 * total
    assert math.isfinite(threshold)
    if fraction == 0:
        assert kept(threshold) == 0
        return
    lowest = min(mav for mav, _ in flat if mav >= threshold)
    assert kept(math.nextafter(lowest, math.inf)) < max(fraction * total, 1e-12)
    # no feature stands on it, so that its last bit decides nothing
    below = max((mav for mav, _ in flat if mav < threshold), default=None)
    assert threshold == (0.0 if below is None else (lowest + below) / 2)
