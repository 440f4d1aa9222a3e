"""The expression of --only."""

import pytest

from ablations.study.selection import check_selection, parse_selection
from layerswap_method.errors import InputError

CELLS = [
    {"kind": "base", "label": "base"},
    {"kind": "recipe", "bottom_layers": 0, "placement": "outer", "on": True},
    {"kind": "recipe", "bottom_layers": 3, "placement": "middle", "on": False},
    {"kind": "recipe", "bottom_layers": 10, "placement": "outer", "on": False},
]
KNOWN = {name for cell in CELLS for name in cell}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("kind=base", [0]),
        ("kind=recipe", [1, 2, 3]),
        ("bottom_layers=0|10", [1, 3]),
        ("bottom_layers<10,placement=outer", [1]),
        ("bottom_layers >= 3", [2, 3]),
        ("placement!=outer", [2]),
        ("on=true", [1]),
    ],
)
def test_conditions(text: str, chosen: list[int]) -> None:
    holds = parse_selection(text, KNOWN)
    assert [index for index, cell in enumerate(CELLS) if holds(cell)] == chosen


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--only is empty"),
        ("bottom", "is no condition"),
        ("bottom_layer=3", "did you mean 'bottom_layers'"),
        ("bottom_layers<many", "is no number"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_selection(text, KNOWN)


def test_an_expression_can_be_checked_before_keys_are_known() -> None:
    cells = [{**cell, "key": ""} for cell in CELLS]
    check_selection("kind=base", cells)
    check_selection("kind=base,key=35e26cc1", cells)  # what only the key decides
    with pytest.raises(InputError, match="no cell of the study is like that"):
        check_selection("bottom_layers=7", cells)
    with pytest.raises(InputError, match="did you mean 'kind'"):
        check_selection("kid=base", cells)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind=recip", "like that; did you mean 'recipe'? kind is base, recipe"),
        ("bottom_layers=1|7", "like that; bottom_layers is 0, 3, 10"),
        ("kind=recipe, bottom_layers > 10", "like that; bottom_layers is 0, 3, 10"),
        ("on=treu,kind=base", "like that; did you mean 'True'? on is True, False"),
        ("kind=base,bottom_layers=0", "each condition holds for some cell, all of them for none"),
    ],
)
def test_no_cell_chosen_says_what_there_is(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        check_selection(text, CELLS)
    assert caught.value.message.startswith(f"--only {text}: no cell of the study is like that")
    assert caught.value.message.endswith(told)


def test_many_values_are_not_all_told() -> None:
    cells = [{"seed": number} for number in range(15)]
    with pytest.raises(InputError, match=r"seed is 0, 1, .*, 11 or one of 3 more$"):
        check_selection("seed=99", cells)
