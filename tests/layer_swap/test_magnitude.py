"""Magnitude weights as numbers: the laws of section 5.1's inverse, and of soups within a role."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.average import mix_coefficients
from layerswap_method.methods.delta_share import inverse_mav, magnitude_weights
from layerswap_method.methods.layer_swap import LayerSwapSpec

MAVS = st.floats(1e-9, 1e-1)
WEIGHTS = st.floats(0.01, 100)
CLOSE = 3e-6
"""Three inverses, each rounded to six digits."""


def shares(
    roles: list[str], weights: list[float], mavs: list[float], **sides: float
) -> list[float]:
    """Return each input's share of an average, in the order of the inputs."""
    found = magnitude_weights(roles, weights, mavs, **sides)
    order = [i for side in ("task", "language") for i, role in enumerate(roles) if role == side]
    coefficients, divisor = mix_coefficients(
        [found.models[i] for i in order if roles[i] == "task"],
        [found.models[i] for i in order if roles[i] == "language"],
        found.task,
        found.language,
    )
    result = dict(zip(order, coefficients, strict=True))
    return [result[i] / divisor for i in range(len(roles))]


@given(MAVS)
def test_six_digits_of_the_inverse(mav: float) -> None:
    assert inverse_mav(mav) == pytest.approx(1 / mav, rel=5e-6)
    assert float(f"{inverse_mav(mav):.6g}") == inverse_mav(mav)


def test_the_example_of_the_log() -> None:
    assert inverse_mav(1.9e-5) == 52631.6
    assert magnitude_weights(["task", "language"], [1, 1], [2e-5, 1e-5]).models == (5e4, 1e5)


@given(MAVS, MAVS, st.floats(0.01, 100))
def test_scaling_a_change_by_c_scales_the_weight_by_its_inverse(
    one: float, other: float, c: float
) -> None:
    assert inverse_mav(c * one) == pytest.approx(inverse_mav(one) / c, rel=CLOSE * 4)
    before = shares(["task", "language"], [1, 1], [one, other])
    after = shares(["task", "language"], [1, 1], [c * one, other])
    odds = [pair[0] / pair[1] for pair in (before, after)]
    assert odds[1] == pytest.approx(odds[0] / c, rel=CLOSE * 10)


@given(MAVS, MAVS)
def test_the_share_of_one_is_the_others_change(one: float, other: float) -> None:
    found = shares(["task", "language"], [1, 1], [one, other])
    assert found == pytest.approx([other / (one + other), one / (one + other)], rel=1e-4)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert shares(["language", "task"], [1, 1], [one, other]) == pytest.approx(found)


@given(st.lists(st.tuples(WEIGHTS, MAVS), min_size=1, max_size=5), st.data())
def test_every_share_is_the_uniform_one_times_the_inverse(
    task: list[tuple[float, float]], data: st.DataObject
) -> None:
    language = data.draw(st.lists(st.tuples(WEIGHTS, MAVS), min_size=1, max_size=5))
    sides = {"task_weight": data.draw(WEIGHTS), "language_weight": data.draw(WEIGHTS)}
    given_models = [*task, *language]
    roles = ["task"] * len(task) + ["language"] * len(language)
    mavs = [mav for _, mav in given_models]
    found = shares(roles, [weight for weight, _ in given_models], mavs, **sides)
    uniform = shares(roles, [weight for weight, _ in given_models], [1.0] * len(mavs), **sides)
    odds = [share / (even / mav) for share, even, mav in zip(found, uniform, mavs, strict=True)]
    assert odds == pytest.approx([odds[0]] * len(odds), rel=1e-4)


@given(st.integers(1, 12), MAVS, MAVS)
def test_many_experts_of_a_role_do_not_outvote_one(
    count: int, task: float, language: float
) -> None:
    roles = ["task", *["language"] * count]
    found = shares(roles, [1.0] * len(roles), [task, *[language] * count])
    alone = shares(["task", "language"], [1.0, 1.0], [task, language])
    assert [found[0], math.fsum(found[1:])] == pytest.approx(alone, rel=1e-6)


def test_one_expert_a_role_keeps_exact_numbers() -> None:
    found = magnitude_weights(["task", "language"], [1, 3], [2e-5, 1e-5], language_weight=0.5)
    assert (found.task, found.language) == (5e4, 5e4)
    assert mix_coefficients([5e4], [3e5], found.task, found.language) == ([1.0, 1.0], 2.0)


def test_inputs_of_weight_0_are_not_measured() -> None:
    found = magnitude_weights(["task", "task", "language"], [0, 1, 1], [None, 1e-5, 1e-5])
    assert found.models == (0.0, 1e5, 1e5)
    assert found.task == 1e5


@pytest.mark.parametrize("mav", [0.0, -1e-5, math.inf, math.nan, 1e-320])
def test_changes_without_an_inverse(mav: float) -> None:
    with pytest.raises(ValueError, match=r"the mean change is .*, which has no inverse"):
        magnitude_weights(["task", "language"], [1, 1], [1e-5, mav])


def test_weights_leave_nothing_to_measure() -> None:
    spec = LayerSwapSpec(weighting="magnitude", placement="delta_share", delta_blend=0.9)
    assert spec.needs_deltas
    weights = magnitude_weights(["task", "language"], [1, 1], [2e-5, 1e-5])
    after = weights.applied_to(spec)
    assert after.weighting == "uniform"
    assert after.side_weights == (45000.0, 10000.0)
    assert not LayerSwapSpec().needs_deltas
    assert LayerSwapSpec(placement="soup").side_weights == (1.0, 1.0)
