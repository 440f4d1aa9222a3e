"""Laws of the row rule and its threshold, and of the parameters that say what goes back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from layerswap_method.methods.delta_revert import MODULES, RevertSpec
from layerswap_method.methods.delta_revert_merge import Kept, keep_threshold, revert_rows

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = [((6, 5), 1), ((6, 5), 0), ((7,), None), ((3, 4, 5), 2), ((3, 4, 5), 1), ((6, 5, 2, 2), 1)]


def pair(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, generator=generator, dtype=torch.float64)
    change = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.1
    return [(base + change).to(dtype), base.to(dtype)]


def rows_of(tensor: torch.Tensor, axis: int | None) -> list[torch.Tensor]:
    """The rows, by indexing: what the mean is taken over runs along the other axis (axes)."""
    if axis is None:
        return [tensor]
    if tensor.ndim == 3:
        return [matrix.select(axis - 1, i) for matrix in tensor for i in range(tensor.shape[axis])]
    if tensor.ndim == 4:
        return [
            tensor[:, i, y, x]
            for i in range(tensor.shape[1])
            for y in range(tensor.shape[2])
            for x in range(tensor.shape[3])
        ]
    return [tensor.select(axis, i) for i in range(tensor.shape[axis])]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_is_one_side_bit_for_bit(
    shape: tuple[int, ...], axis: int | None, dtype: torch.dtype
) -> None:
    expert, base = pair(shape, dtype)
    threshold = 0.08
    result, kept = revert_rows(expert, base, threshold, axis)
    stays = 0
    for got, ours, theirs in zip(
        rows_of(result, axis), rows_of(expert, axis), rows_of(base, axis), strict=True
    ):
        change = (ours.double() - theirs.double()).abs().mean()
        assert abs(change - threshold) > 1e-4, "too near to tell"
        assert torch.equal(got, ours if change > threshold else theirs)
        stays += int(change > threshold)
    rows = len(rows_of(expert, axis))
    assert 0 < stays < rows or axis is None, "the rows had no choice to make"
    assert kept == Kept(rows, stays, expert.numel(), stays * expert.numel() // rows)
    assert result.dtype == dtype


def test_at_the_ends_it_is_the_input_itself() -> None:
    expert, base = pair((6, 5), torch.bfloat16)
    assert revert_rows(expert, base, 0.0, 1)[0] is expert
    assert revert_rows(expert, expert, 0.0, 1)[1].kept_rows == 5, "nothing is below 0"
    assert revert_rows(expert, base, 1e9, 1)[0] is base


def test_a_row_at_the_threshold_stays() -> None:
    base = torch.zeros(2, 3)
    expert = torch.tensor([[0.25, 0.5, 0.125], [0.25, 0.5, 0.125]])
    result, kept = revert_rows(expert, base, 0.25, 1)
    assert result[0].tolist() == [0.25, 0.5, 0.0]
    assert (kept.kept_rows, kept.kept_weights) == (2, 4)


MAVS = st.lists(
    st.tuples(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200)
@given(MAVS, st.floats(0, 1))
def test_at_least_the_fraction_is_kept_and_no_higher_threshold_does(
    rows: list[tuple[list[float], int]], fraction: float
) -> None:
    tensors = [(torch.tensor(mavs, dtype=torch.float32), size) for mavs, size in rows]
    threshold = keep_threshold(tensors, fraction)
    flat = [(float(mav), size) for mavs, size in tensors for mav in mavs]
    total = sum(size for _, size in flat)

    def kept(limit: float) -> int:
        return sum(size for mav, size in flat if mav >= limit)

    assert kept(threshold) >= fraction * total - 1e-9 * total
    higher = min((mav for mav, _ in flat if mav > threshold), default=math.inf)
    assert kept(higher) < max(fraction * total, 1e-12) or fraction == 0
    if fraction == 0:
        assert kept(threshold) == 0
        assert math.isfinite(threshold)


def test_seven_of_ten_equal_rows() -> None:
    mavs = torch.arange(10, dtype=torch.float32)
    assert [keep_threshold([(mavs, 3)], f / 10) for f in range(1, 11)] == list(range(9, -1, -1))


def test_rows_of_one_magnitude_stay_together() -> None:
    assert keep_threshold([(torch.tensor([1.0, 1.0, 1.0, 0.5]), 1)], 0.25) == 1.0


def test_rows_weigh_what_they_hold() -> None:
    long, short = (torch.tensor([2.0]), 90), (torch.tensor([3.0, 1.0]), 5)
    assert [keep_threshold([long, short], f) for f in (0.05, 0.06, 0.95, 0.96)] == [3, 2, 2, 1]


@pytest.mark.parametrize(
    ("rows", "fraction", "message"),
    [
        ([], 0.5, "no row"),
        ([(torch.tensor([]), 1)], 0.5, "no row"),
        ([(torch.tensor([math.nan]), 1)], 0.5, "not finite"),
        ([(torch.tensor([1.0]), 1)], 1.5, "between 0 and 1"),
        ([(torch.tensor([1.0]), 1)], math.nan, "between 0 and 1"),
    ],
)
def test_what_has_no_threshold(
    rows: list[tuple[torch.Tensor, int]], fraction: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        keep_threshold(rows, fraction)


LAYERS = {
    "self_attn.q_proj.weight": "attention",
    "mlp.up_proj.weight": "mlp",
    "input_layernorm.weight": "norm",
    "something.weight": "other",
}


def test_layers_are_the_union_of_every_way_to_name_them() -> None:
    spec = RevertSpec(revert_layers="0-4,30,31", bottom_layers=2, top_layers=3)
    assert spec.layers(32) == {0, 1, 2, 3, 4, 29, 30, 31}
    assert RevertSpec(bottom_layers=5, top_layers=2).layers(32) == {0, 1, 2, 3, 4, 30, 31}
    assert RevertSpec(threshold=0.1).layers(8) == frozenset()


@pytest.mark.parametrize("by_feature", [{}, {"threshold": 0.1}, {"keep_fraction": 0.5}])
def test_a_tensor_goes_back_if_any_set_names_it(by_feature: dict[str, float]) -> None:
    otherwise = "rows" if by_feature else "expert"
    spec = RevertSpec(bottom_layers=1, revert_modules="mlp, non_layer", **by_feature)
    layers = spec.layers(4)
    for name, part in LAYERS.items():
        full = f"model.layers.0.{name}"
        assert spec.rule(full, 0, layers) == "base"
        assert spec.rule(full, 3, layers) == ("base" if part == "mlp" else otherwise)
    assert spec.rule("model.embed_tokens.weight", None, layers) == "base"
    assert RevertSpec(bottom_layers=1).rule("lm_head.weight", None, layers) == "expert"


def test_every_part_of_a_layer_can_be_named() -> None:
    spec = RevertSpec(revert_modules=",".join(MODULES))
    assert {spec.rule(f"model.layers.1.{name}", 1, frozenset()) for name in LAYERS} == {"base"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "nothing says what to revert"),
        ({"threshold": 0.1, "keep_fraction": 0.5}, "both say which rows stay"),
        ({"threshold": -1.0}, "greater than or equal to 0"),
        ({"threshold": math.inf}, "finite"),
        ({"keep_fraction": 1.1}, "less than or equal to 1"),
        ({"keep_fraction": "0.5"}, "valid number"),
        ({"revert_layers": "4-0"}, "revert_layers '4-0': range '4-0' runs backwards"),
        ({"revert_modules": "atention"}, "'atention' is none of .* did you mean 'attention'?"),
        ({"revert_modules": "mlp,mlp"}, "mlp is named twice"),
        ({"revert_modules": ""}, "'' is none of"),
    ],
)
def test_what_is_no_spec(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RevertSpec(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bottom_layers": 3, "top_layers": 2}, r"3 \+ 2 = 5 is more than the model's 4 layers"),
        ({"revert_layers": "4"}, "revert_layers '4': layer 4 does not exist"),
    ],
)
def test_layers_that_do_not_fit(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RevertSpec(**values).layers(4)
