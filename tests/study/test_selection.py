"""The conditions of --only."""

import pytest

from ablations.study.cells import selected
from layerswap_method.errors import InputError
from tests.runner.fakes import make_cells

(BASE, *RECIPES) = make_cells(4)
CELLS = [
    BASE.model_copy(update={"kind": "base", "label": "base", "values": {}}),
    *(
        cell.model_copy(
            update={"label": f"r{count}", "values": {"bottom_layers": count, "placement": place}}
        )
        for cell, count, place in zip(
            RECIPES, (0, 3, 10), ("outer", "middle", "outer"), strict=True
        )
    ),
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
def test_values_of_a_name_are_alternatives_and_names_must_all_fit(
    only: list[str], chosen: list[str]
) -> None:
    assert [cell.label for cell in selected(CELLS, only)] == chosen


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("", "--only : write NAME=VALUE"),
        ("bottom", "write NAME=VALUE"),
        ("bottom_layer=3", "no cell has 'bottom_layer'; did you mean 'bottom_layers'?"),
        ("kind=recip", "this value; did you mean 'recipe'? there are base, recipe"),
        ("bottom_layers=7", "no cell has this value; there are 0, 3, 10"),
    ],
)
def test_a_name_or_value_that_no_cell_has_is_said_with_what_there_is(
    only: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        selected(CELLS, [only])
    assert message in caught.value.message


def test_conditions_that_no_cell_fits_together_are_refused() -> None:
    with pytest.raises(InputError, match="some cells fit each condition, but none fits all"):
        selected(CELLS, ["kind=base", "bottom_layers=0"])
