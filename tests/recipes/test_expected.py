"""The table of expected layers covers every recipe and follows from the paper's formula."""

from __future__ import annotations

import pytest

from tests.recipes.documents import RECIPES, load
from tests.recipes.expected import REVERTS, SHARES, SOUPS, SWAPS, TIES

OUTER = [recipe for recipe in SWAPS if "placement" not in load(recipe)["parameters"]]


def test_no_recipe_escapes() -> None:
    assert sorted([*SWAPS, *SHARES, *SOUPS, *TIES, *REVERTS]) == RECIPES
    methods = {recipe: load(recipe)["merge_method"] for recipe in RECIPES}
    assert {r for r, method in methods.items() if method == "layer_swap"} == {*SWAPS, *SHARES}
    assert {r for r, method in methods.items() if method == "linear"} == set(SOUPS)
    assert {r for r, method in methods.items() if method == "ties"} == set(TIES)
    assert {r for r, method in methods.items() if method == "delta_revert"} == set(REVERTS)


@pytest.mark.parametrize("recipe", OUTER)
def test_outer_layers_follow_algorithm_1(recipe: str) -> None:
    given, expected = load(recipe)["parameters"], SWAPS[recipe]
    b, u = given["bottom_layers"], given["top_layers"]
    t_b, t_u, total = given["bottom_transition"], given["top_transition"], expected.layers
    language = {layer for layer in range(total) if layer < b or layer > total - 1 - u}
    task = {layer for layer in range(total) if b + t_b <= layer < total - u - t_u}
    assert expected.language == language
    assert expected.average == set(range(total)) - language - task


@pytest.mark.parametrize("recipe", ["recipes/swahili.yml", "recipes/telugu.yml"])
def test_the_default_recipes_have_the_papers_underlined_counts(recipe: str) -> None:
    assert load(recipe)["parameters"] == {
        "bottom_layers": 5,
        "top_layers": 2,
        "bottom_transition": 0,
        "top_transition": 0,
    }
