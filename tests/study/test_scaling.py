"""Laws of scaled layer counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.study.scaling import describe_scaling, scale_count

depths = st.integers(1, 200)


@given(depths, depths)
def test_nothing_stays_nothing_and_everything_everything(reference: int, depth: int) -> None:
    assert scale_count(0, reference, depth) == 0
    assert scale_count(reference, reference, depth) == depth


@given(st.data(), depths, depths)
def test_the_share_moves_by_half_a_layer_at_most(data, reference: int, depth: int) -> None:
    count = data.draw(st.integers(0, reference))
    scaled = scale_count(count, reference, depth)
    assert abs(scaled - count * depth / reference) <= 0.5
    assert scale_count(count, reference, reference) == count


@given(st.data(), depths, depths)
def test_more_layers_never_become_fewer(data, reference: int, depth: int) -> None:
    low, high = sorted(data.draw(st.lists(st.integers(0, reference), min_size=2, max_size=2)))
    assert scale_count(low, reference, depth) <= scale_count(high, reference, depth)


def test_the_pocket_models_of_the_paper() -> None:
    assert [scale_count(count, 32, 8) for count in (0, 3, 1, 5, 2, 8, 4)] == [0, 1, 0, 1, 1, 2, 1]


@pytest.mark.parametrize("count", [-1, 33])
def test_counts_beyond_the_reference_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="is no number of layers of a model of 32"):
        scale_count(count, 32, 8)


def test_rounding_is_said_aloud() -> None:
    text = describe_scaling({"bottom_layers": [5, 8]}, 32, 8)
    assert text == (
        "layer counts of 32 layers, scaled to 8: bottom_layers 5 -> 1 (from 1.25), 8 -> 2"
    )
