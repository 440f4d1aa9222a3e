"""Averages against exact rational arithmetic on the stored values."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerswap_method.average import mix_coefficients, weighted_average

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
WEIGHTS = st.floats(0.01, 100).map(lambda w: round(w, 2))


def draw(dtype: torch.dtype, seed: int, size: int = 4000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * 0.02).to(dtype)


def exact(tensors: list[torch.Tensor], shares: list[Fraction]) -> list[Fraction]:
    columns = zip(*(t.to(torch.float64).tolist() for t in tensors), strict=True)
    return [
        sum((s * Fraction(v) for s, v in zip(shares, column, strict=True)), Fraction(0))
        for column in columns
    ]


def wrongly_rounded(result: torch.Tensor, reference: list[Fraction]) -> int:
    """Count the values that have a neighbour of their dtype nearer to the exact value."""
    up = torch.nextafter(result, torch.full_like(result, torch.inf)).to(torch.float64).tolist()
    down = torch.nextafter(result, torch.full_like(result, -torch.inf)).to(torch.float64).tolist()
    here = result.to(torch.float64).tolist()
    return sum(
        abs(Fraction(h) - e) > min(abs(Fraction(u) - e), abs(Fraction(d) - e))
        for h, u, d, e in zip(here, up, down, reference, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_plain_average_is_the_exact_one_rounded_once(dtype: torch.dtype) -> None:
    tensors = [draw(dtype, 0), draw(dtype, 1)]
    result = weighted_average(tensors, *mix_coefficients([1.0], [1.0]))
    assert result.dtype == dtype
    assert wrongly_rounded(result, exact(tensors, [Fraction(1, 2)] * 2)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_unequal_weights_and_soups_too(dtype: torch.dtype) -> None:
    tensors = [draw(dtype, seed) for seed in range(5)]
    coefficients, divisor = mix_coefficients([1.0, 2.0], [1.0, 1.0, 1.0], 2.0, 1.0)
    shares = [Fraction(2, 9), Fraction(4, 9), Fraction(1, 9), Fraction(1, 9), Fraction(1, 9)]
    result = weighted_average(tensors, coefficients, divisor)
    # float32 accumulation: at most a few values in 4000 may sit on a rounding boundary.
    assert wrongly_rounded(result, exact(tensors, shares)) <= 2
    rounded_thirds = sum(t.float() * float(s) for t, s in zip(tensors, shares, strict=True))
    naive = wrongly_rounded(rounded_thirds.to(dtype), exact(tensors, shares))  # type: ignore[union-attr]
    assert wrongly_rounded(result, exact(tensors, shares)) <= naive


@pytest.mark.parametrize(
    ("task", "language", "w_task"),
    [([1.0, 2.0], [1.0], 1.0), ([1.0] * 3, [1.0] * 3, 1.0), ([1.0], [1.0], 0.3), ([3.0], [], 1.0)],
)
def test_float32_is_rounded_once_whatever_the_weights(
    task: list[float], language: list[float], w_task: float
) -> None:
    tensors = [draw(torch.float32, seed) for seed in range(len(task) + len(language))]
    coefficients, divisor = mix_coefficients(task, language, w_task, 1.0)
    shares = [Fraction(c) / Fraction(divisor) for c in coefficients]
    result = weighted_average(tensors, coefficients, divisor)
    assert wrongly_rounded(result, exact(tensors, shares)) == 0


@given(
    st.lists(WEIGHTS, min_size=1, max_size=4),
    st.lists(WEIGHTS, min_size=1, max_size=4),
    WEIGHTS,
    WEIGHTS,
)
def test_coefficients_are_the_shares_of_the_two_soups(
    task: list[float], language: list[float], w_task: float, w_lang: float
) -> None:
    coefficients, divisor = mix_coefficients(task, language, w_task, w_lang)
    shares = [c / divisor for c in coefficients]
    assert sum(shares) == pytest.approx(1)
    assert sum(shares[: len(task)]) == pytest.approx(w_task / (w_task + w_lang))
    assert [s / shares[0] for s in shares[: len(task)]] == pytest.approx(
        [a / task[0] for a in task]
    )


def test_weights_are_the_decimals_that_were_written() -> None:
    assert mix_coefficients([1.0], [1.0], 0.3, 0.7) == ([3.0, 7.0], 10.0)
    assert mix_coefficients([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == ([1.0] * 6, 6.0)
    assert mix_coefficients([1.0, 2.0], []) == ([1.0, 2.0], 3.0)


def test_weights_whose_whole_numbers_are_too_large_still_add_up() -> None:
    coefficients, divisor = mix_coefficients([0.123456789, 1.0], [0.987654321])
    assert sum(coefficients) == pytest.approx(divisor)
    assert coefficients[2] / divisor == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("task", "language", "w_task", "message"),
    [
        ([0.0], [1.0], 1.0, "sum to 0"),
        ([-1.0], [1.0], 1.0, "weight -1"),
        ([1.0], [1.0], float("nan"), "weight nan"),
        ([1.0], [1.0], -2.0, "weight -2"),
    ],
)
def test_weights_that_mean_nothing_are_refused(
    task: list[float], language: list[float], w_task: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mix_coefficients(task, language, w_task)


def test_a_single_source_is_the_tensor_itself() -> None:
    tensor = draw(torch.bfloat16, 0)
    other = torch.full_like(tensor, torch.nan)
    assert weighted_average([tensor], [1.0], 1.0).data_ptr() == tensor.data_ptr()
    assert weighted_average([tensor, other], [5.0, 0.0], 5.0).data_ptr() == tensor.data_ptr()


def test_inputs_are_not_modified_and_layouts_do_not_matter() -> None:
    a, b = draw(torch.float32, 0).view(80, 50), draw(torch.float32, 1).view(50, 80).T
    before = a.clone(), b.clone()
    result = weighted_average([a, b], [1.0, 1.0], 2.0)
    assert torch.equal(result, (a + b) / 2)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [draw(torch.bfloat16, seed, 1001) for seed in range(2)]
    whole = weighted_average(tensors, [1.0, 3.0], 4.0)
    monkeypatch.setattr("layerswap_method.average._CHUNK", 7)
    assert torch.equal(weighted_average(tensors, [1.0, 3.0], 4.0), whole)


def test_the_cast_is_part_of_the_one_rounding() -> None:
    tensors = [draw(torch.float32, 0), draw(torch.float32, 1)]
    result = weighted_average(tensors, [1.0, 1.0], 2.0, out_dtype=torch.bfloat16)
    reference = exact(tensors, [Fraction(1, 2)] * 2)
    assert result.dtype == torch.bfloat16
    assert wrongly_rounded(result, reference) <= 1
    cast_first = weighted_average([t.bfloat16() for t in tensors], [1.0, 1.0], 2.0)
    assert wrongly_rounded(cast_first, reference) > 100


def test_shapes_and_empty_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        weighted_average([torch.zeros(2), torch.zeros(3)], [1.0, 1.0], 2.0)
    with pytest.raises(ValueError, match="nothing to average"):
        weighted_average([torch.zeros(2)], [0.0], 1.0)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...]) -> None:
    result = weighted_average([torch.zeros(shape), torch.ones(shape)], [1.0, 1.0], 2.0)
    assert result.shape == shape
    assert torch.equal(result, torch.full(shape, 0.5))
