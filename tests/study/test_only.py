"""`--only`: which cells fit the conditions."""

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
def test_values_of_a_name_are_alternatives_and_names_must_all_fit(only, chosen):
    assert [cell.label for cell in selected(CELLS, only)] == chosen


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ([""], "--only : no cell has this NAME=VALUE"),
        (["bottom"], "no cell has this NAME=VALUE"),
        (["bottom_layer=3"], "no cell has this NAME=VALUE; did you mean 'bottom_layers=3'?"),
        (["kind=recip"], "did you mean 'kind=recipe'?"),
        (["kind=base", "bottom_layers=0"], "some cells fit each condition, but none fits all"),
    ],
)
def test_conditions_that_no_cell_fits_are_refused(only, message):
    with pytest.raises(InputError) as caught:
        selected(CELLS, only)
    assert message in caught.value.message
