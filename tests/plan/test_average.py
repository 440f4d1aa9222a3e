"""Averages against exact rational arithmetic on the stored values, and their coefficients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.average import Input, weighted_average, weighted_inputs
from tests.standins.oracle import round_once

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WEIGHTS = st.floats(0.01, 100).map(lambda weight: round(weight, 2))


def draw(dtype, seed, size=2000):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * 0.02).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_plain_average_is_the_exact_one_rounded_once(dtype):
    one, other = draw(dtype, 0), draw(dtype, 1)
    wanted = round_once(((one.double() + other.double()) / 2).numpy(), dtype)
    assert torch.equal(weighted_average([one, other], [1.0, 1.0]), wanted)


@pytest.mark.parametrize("divisor", range(3, 99, 8))
def test_the_division_is_a_division(divisor):
    """A product with the inverse rounds twice."""
    pair = [torch.arange(1.0, 99), torch.arange(2.0, 100)]
    wanted = torch.arange(divisor * 1.0 + 1, divisor * 99 + 1, divisor).double() / divisor
    assert torch.equal(weighted_average(pair, [divisor - 1.0, 1.0]), wanted.float())


def test_the_cast_is_part_of_the_one_rounding():
    one, other = draw(torch.float32, 0), draw(torch.float32, 1)
    half = [one.bfloat16(), other.bfloat16()]
    wanted = round_once(((one.double() + other.double()) / 2).numpy(), torch.bfloat16)
    assert (weighted_average([one, other], [1.0, 1.0], torch.bfloat16) != wanted).sum() <= 1
    assert weighted_average([one, other.double()], [1, 1]).dtype == torch.float64
    wide = weighted_average(half, [1.0, 1.0], torch.float32)
    assert torch.equal(wide, (half[0].float() + half[1].float()) / 2)


def test_a_single_source_is_itself_and_inputs_are_not_modified():
    one = draw(torch.bfloat16, 0)
    assert weighted_average([one], [5.0]).data_ptr() == one.data_ptr()
    a, b = draw(torch.float32, 0).view(80, 25), draw(torch.float32, 1).view(25, 80).T
    before = a.clone(), b.clone()
    assert torch.equal(weighted_average([a, b], [1.0, 1.0]), (a + b) / 2)
    assert all(torch.equal(*pair) for pair in zip((a, b), before, strict=True))
    for shape in ((), (0,), (0, 3)):
        result = weighted_average([torch.zeros(shape), torch.ones(shape)], [1.0, 1.0])
        assert torch.equal(result, torch.full(shape, 0.5))
    with pytest.raises(ValueError, match="shapes differ"):
        weighted_average([torch.zeros(2), torch.zeros(3)], [1.0, 1.0])
    with pytest.raises(ValueError, match="nothing to average"):
        weighted_average([], [])


def inputs_of(task, language):
    given_inputs = [Input("task", weight) for weight in task]
    return [*given_inputs, *(Input("language", weight) for weight in language)]


@given(
    st.lists(WEIGHTS, min_size=1, max_size=4),
    st.lists(WEIGHTS, min_size=1, max_size=4),
    st.tuples(WEIGHTS, WEIGHTS),
)
def test_coefficients_are_the_shares_of_the_two_soups(task, language, sides):
    made_of = weighted_inputs("x", "average", inputs_of(task, language), sides)
    assert made_of.inputs == tuple(range(len(task) + len(language)))
    shares = [number / math.fsum(made_of.coefficients) for number in made_of.coefficients]
    assert sum(shares[: len(task)]) == pytest.approx(sides[0] / sum(sides))
    for given_weights, found in ((task, shares[: len(task)]), (language, shares[len(task) :])):
        wanted = [weight / given_weights[0] for weight in given_weights]
        assert [share / found[0] for share in found] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("source", "sides", "inputs", "coefficients"),
    [
        ("average", (0.0, 2.0), (3,), (1,)),
        ("average", (1e308, 1e308), (0, 2, 3), (1, 2, 3)),
        ("task", (1, 1), (0, 2), (1, 2)),
        ("base", (1, 1), (4,), (1,)),
    ],
)
def test_what_counts_nothing_is_left_out(source, sides, inputs, coefficients):
    given = [*inputs_of([1, 0, 2], [1]), Input(is_base=True)]
    made_of = weighted_inputs("x", source, given, sides)
    assert made_of.inputs == inputs
    scaled = [number / made_of.coefficients[0] for number in made_of.coefficients]
    assert scaled == pytest.approx(list(coefficients))


@pytest.mark.parametrize(
    ("task", "language", "sides", "part"),
    [
        ([0.0], [1.0], (1, 1), "sum to 0"),
        ([-1.0], [1.0], (1, 1), "must be finite numbers"),
        ([1.0], [1.0], (math.nan, 1), "must be finite numbers"),
        ([1.0], [1.0], (0, 0), "both 0"),
        ([1.0], [], (1, 1), "no language expert"),
        ([1e308, 1e308], [1.0], (1, 1), "so must be their sum"),
    ],
)
def test_weights_that_mean_nothing_are_refused(task, language, sides, part):
    with pytest.raises(ValueError, match=part):
        weighted_inputs("x", "average", inputs_of(task, language), sides)
    with pytest.raises(ValueError, match="base model does not have"):
        weighted_inputs("x", "base", inputs_of(task, language))
