"""Cells: laws of scaled layer counts, and which of them `--only` leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.study.cells import selected
from ablations.study.describe import describe_study_plan
from ablations.study.documents import scale_count, scale_counts, scale_layers
from layerswap_method.errors import InputError
from layerswap_method.methods.layer_swap import COUNTS
from tests.runner.fakes import make_cells

depths = st.integers(1, 200)


@given(st.data(), depths, depths)
def test_the_share_moves_by_half_a_layer_at_most_and_the_order_stays(data, reference, depth):
    low, high = sorted(data.draw(st.lists(st.integers(0, reference), min_size=2, max_size=2)))
    scaled = scale_count(low, reference, depth)
    assert abs(scaled - low * depth / reference) <= 0.5
    assert scaled <= scale_count(high, reference, depth)
    assert scale_count(low, reference, reference) == low


@given(st.data(), depths, depths)
def test_counts_that_fit_one_depth_fit_another(data, reference, depth):
    counts = {}
    for name in COUNTS:
        counts[name] = data.draw(st.integers(0, reference - sum(counts.values())))
    scaled = scale_counts(counts, reference, depth)
    assert sum(scaled.values()) <= depth
    assert all(abs(scaled[name] - counts[name] * depth / reference) <= 1 for name in COUNTS)
    assert min(scaled.values()) >= 0
    if sum(alone := [scale_count(count, reference, depth) for count in counts.values()]) <= depth:
        assert list(scaled.values()) == alone


def test_of_two_counts_that_would_not_fit_the_last_gives_way():
    for counts, expected in (((2, 6), [8, 22]), ((6, 2), [23, 7]), ((4, 4), [15, 15])):
        scaled = scale_counts(dict(zip(COUNTS, counts, strict=False)), 8, 30)
        assert list(scaled.values()) == expected


@pytest.mark.parametrize(
    ("text", "reference", "depth", "expected"),
    [
        ("0,7", 8, 32, "0-3,28-31"),
        ("0-1,7", 8, 8, "0-1,7"),
        ("2-5", 8, 4, "1-2"),
        ("0", 8, 12, "0-1"),
    ],
)
def test_a_list_of_layers_covers_the_same_share_of_the_depth(text, reference, depth, expected):
    assert scale_layers(text, reference, depth, "revert_layers") == expected


def test_layers_that_are_beyond_the_reference_or_vanish_are_refused():
    with pytest.raises(ValueError, match="33 is not a layer count"):
        scale_count(33, 32, 8)
    with pytest.raises(ValueError, match=r"layers 2 of 32 round to none of 8"):
        scale_layers("2", 32, 8, "revert_layers")


def test_reverts_are_scaled_and_the_plan_says_so(plan):
    recipe = {"merge_method": "delta_revert", "models": [{"model": "task"}], "base_model": "base"}
    vary = [{"revert_layers": "0-1,6-7"}, {"bottom_layers": 2, "top_layers": 4}]
    found = plan(recipe=recipe, vary=vary, reference_layers=8)  # of 4 layers
    first, second = (cell.recipe.document["parameters"] for cell in found.cells[-2:])
    assert first == {"revert_layers": "0,3"}
    assert second == {"bottom_layers": 1, "top_layers": 2}
    assert any("revert_layers '0-1,6-7' -> '0,3'" in note for note in found.notes)


def test_layer_counts_of_another_depth_are_scaled_aloud(plan):
    found = plan(reference_layers=32, vary=[{"bottom_layers": 8, "top_layers": 4}])
    assert found.cells[-1].recipe.document["parameters"]["bottom_layers"] == 1
    assert found.cells[-1].values == {"bottom_layers": 8, "top_layers": 4}
    text = describe_study_plan(found, found.cells, materialize=False)
    assert "of 32 layers, scaled to 4: bottom_layers 8 -> 1; top_layers 4 -> 1" in text
    assert "█··█" in text


KINDS = {"base": {}} | {
    f"r{count}": {"bottom_layers": count, "placement": place}
    for count, place in ((0, "outer"), (3, "middle"), (10, "outer"))
}
CELLS = [
    cell.model_copy(
        update={"label": label, "values": values, "kind": "recipe" if values else label}
    )
    for cell, (label, values) in zip(make_cells(4), KINDS.items(), strict=True)
]


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ([], ["base", "r0", "r3", "r10"]),
        (["kind=base"], ["base"]),
        (["kind=recipe", "placement=OUTER"], ["r0", "r10"]),
        (["bottom_layers=0", " bottom_layers = 10", "placement=outer"], ["r0", "r10"]),
        (["label=r3"], ["r3"]),
        (["task=math", "kind=base"], ["base"]),
    ],
)
def test_values_of_a_name_are_alternatives_and_names_must_all_fit(only, chosen):
    assert [cell.label for cell in selected(CELLS, only)] == chosen


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ([""], "--only : no cell has this NAME=VALUE"),
        (["bottom_layer=3"], "no cell has this NAME=VALUE; did you mean 'bottom_layers=3'?"),
        (["kind=base", "bottom_layers=0"], "some cells fit each condition, but none fits all"),
    ],
)
def test_conditions_that_no_cell_fits_are_refused(only, message):
    with pytest.raises(InputError) as caught:
        selected(CELLS, only)
    assert message in caught.value.message
