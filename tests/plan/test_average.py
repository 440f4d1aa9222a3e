"""Averages against exact rational arithmetic on the stored values, and their coefficients."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.average import Input, weighted_average, weighted_inputs

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WEIGHTS = st.floats(0.01, 100).map(lambda weight: round(weight, 2))


def draw(dtype, seed, size=4000):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * 0.02).to(dtype)


def exact(tensors, weights):
    total = sum(map(Fraction, weights))
    columns = zip(*(t.double().tolist() for t in tensors), strict=True)
    return [
        sum((Fraction(w) * Fraction(v) for w, v in zip(weights, column, strict=True)), Fraction())
        / total
        for column in columns
    ]


def wrongly_rounded(result, reference):
    """Count the values that have a neighbour of their dtype nearer to the exact value."""
    up = torch.nextafter(result, torch.full_like(result, torch.inf)).double().tolist()
    down = torch.nextafter(result, torch.full_like(result, -torch.inf)).double().tolist()
    here = result.double().tolist()
    return sum(
        abs(Fraction(h) - e) > min(abs(Fraction(u) - e), abs(Fraction(d) - e))
        for h, u, d, e in zip(here, up, down, reference, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_plain_average_is_the_exact_one_rounded_once(dtype):
    tensors = [draw(dtype, 0), draw(dtype, 1)]
    result = weighted_average(tensors, [1.0, 1.0])
    assert result.dtype == dtype
    assert wrongly_rounded(result, exact(tensors, [1, 1])) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", [[4.0, 2, 1, 1, 1], [0.3, 0.7, 0.1]])
def test_other_weights_differ_from_it_in_few_values_and_by_one_rounding(dtype, weights):
    """float32 accumulation: some values of a thousand sit on a rounding boundary."""
    tensors = [draw(dtype, seed) for seed in range(len(weights))]
    result, reference = weighted_average(tensors, weights), exact(tensors, weights)
    assert wrongly_rounded(result, reference) <= 40
    best = torch.tensor([float(value) for value in reference]).double()
    step = 2**-7 if dtype == torch.bfloat16 else 2**-10
    assert ((result.double() - best).abs() <= step * best.abs() + 1e-7).all()


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
    st.lists(WEIGHTS, min_size=2, max_size=4),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_any_average_is_near_the_exact_one(values, weights, dtype):
    tensors = [torch.tensor(values, dtype=dtype) * (k + 1) for k in range(len(weights))]
    result, reference = weighted_average(tensors, weights), exact(tensors, weights)
    step = torch.finfo(dtype).eps * (len(weights) + 2)
    for found, wanted, *parts in zip(result.tolist(), reference, *tensors, strict=True):
        assert abs(Fraction(found) - wanted) <= step * max(map(abs, map(float, parts))) + 1e-42


def test_the_cast_is_part_of_the_one_rounding():
    tensors = [draw(torch.float32, 0), draw(torch.float32, 1)]
    reference = exact(tensors, [1, 1])
    result = weighted_average(tensors, [1.0, 1.0], torch.bfloat16)
    assert wrongly_rounded(result, reference) <= 1
    cast_first = weighted_average([t.bfloat16() for t in tensors], [1.0, 1.0])
    assert wrongly_rounded(cast_first, reference) > 100
    assert weighted_average([tensors[0], tensors[1].double()], [1, 1]).dtype == torch.float64


def test_a_part_of_the_tensors_gives_that_part_of_the_average():
    tensors = [draw(torch.bfloat16, seed, 1024) for seed in range(2)]
    whole = weighted_average(tensors, [1.0, 3.0])
    parts = [weighted_average([t[s : s + 64] for t in tensors], [1, 3]) for s in range(0, 1024, 64)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_single_source_is_itself_and_inputs_are_not_modified():
    one = draw(torch.bfloat16, 0)
    assert weighted_average([one], [5.0]).data_ptr() == one.data_ptr()
    a, b = draw(torch.float32, 0).view(80, 50), draw(torch.float32, 1).view(50, 80).T
    before = a.clone(), b.clone()
    assert torch.equal(weighted_average([a, b], [1.0, 1.0]), (a + b) / 2)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
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


def test_whole_weights_have_whole_coefficients():
    """So that the only division is the last step, and equal weights keep their bits."""
    for task, language, wanted in (
        ([1], [1], (1, 1)),
        ([1] * 3, [1] * 3, (1,) * 6),
        ([1, 2], [1, 1, 1], (1, 2, 1, 1, 1)),
        ([2], [3], (3, 3)),
    ):
        made_of = weighted_inputs("x", "average", inputs_of(task, language))
        scale = made_of.coefficients[0] / wanted[0]
        assert made_of.coefficients == tuple(scale * number for number in wanted)
        assert all(number == int(number) for number in made_of.coefficients)
    soup = weighted_inputs("x", "task", inputs_of([1, 0, 2], [1]))
    assert (soup.inputs, soup.coefficients) == ((0, 2), (1, 2))
    base = weighted_inputs("x", "base", [Input("task"), Input(is_base=True)])
    assert (base.inputs, base.coefficients) == ((1,), (1,))
    one_side = weighted_inputs("x", "average", inputs_of([1], [1]), (0.0, 2.0))
    assert one_side.inputs == (1,)


@pytest.mark.parametrize("weight", [1e308, 5e-324, 1e300, 1e-200])
def test_weights_at_the_ends_of_the_range_still_count(weight):
    sides = (weight, weight)
    made_of = weighted_inputs("x", "average", inputs_of([weight], [weight]), sides)
    shares = [number / math.fsum(made_of.coefficients) for number in made_of.coefficients]
    assert shares == pytest.approx([0.5, 0.5])
    result = weighted_average([torch.tensor([1.0]), torch.tensor([3.0])], made_of.coefficients)
    assert result.item() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("task", "language", "sides", "part"),
    [
        ([0.0], [1.0], (1, 1), "sum to 0"),
        ([-1.0], [1.0], (1, 1), "weight -1"),
        ([1.0], [1.0], (math.nan, 1), "weight nan"),
        ([1.0], [1.0], (-2.0, 1), "weight -2"),
        ([1.0], [1.0], (0, 0), "both 0"),
        ([1.0], [], (1, 1), "no language expert"),
        ([1e308, 1e308], [1.0], (1, 1), "more than a number holds"),
    ],
)
def test_weights_that_mean_nothing_are_refused(task, language, sides, part):
    with pytest.raises(ValueError, match=part):
        weighted_inputs("x", "average", inputs_of(task, language), sides)
    with pytest.raises(ValueError, match="base model does not have"):
        weighted_inputs("x", "base", inputs_of(task, language))
