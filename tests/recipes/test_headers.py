"""What the header of a recipe says, before the recipe is merged."""

import pytest

from layerswap_method.methods.read import read_recipe_file
from tests.standins.recipe_files import RECIPES, ROOT
from tools.recipe_headers import header_problems


def problems_of(path):
    recipe = read_recipe_file(path)
    return [*header_problems(path, recipe.text, recipe.document)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_shipped_recipe_has_the_header_that_contributors_are_asked_for(recipe):
    assert problems_of(ROOT / recipe) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# Languages: en, sw\n", "", "header: Languages: missing or empty; write # Languages: .."),
        ("# Languages: en, sw\n", "# Languages:\n", "header: Languages: missing or empty"),
        ("# Run:      mergekit-yaml", "# Run:      merge", "header: Run: write mergekit-yaml"),
        ("mergekit-yaml recipes/swahili", "mergekit-yaml recipes/other", "Run: names recipes/oth"),
        ("./merged/swahili", "./swahili", "Run: merges to ./swahili; write ./merged/NAME"),
        ("./merged/swahili", "./merged/telugu", "is the output of telugu.yml; name another"),
        ("./merged/swahili", "./merged/x --lora-merge-cache y", "drop --lora-merge-cache FOLDER"),
        ("model: MergeBench/", "model: ./experts/x/y+org/", "add --lora-merge-cache FOLDER"),
        ("Up to 80 GB of disk", "Some disk", "header: Needs: say how much disk the merge takes"),
        ("model: MergeBench/", "model: Other/", "does not name the model Other/Llama-3.1-8B_math"),
        ("model: MergeBench/", "model: other/models/", "write a hub id, or a folder that begins"),
        ("Not\n#           measured by us", "Measured", 'write "not measured by us" where nobody'),
        ("32.4 mean", "32.9 mean", "Expected: 32.9: name the paper's table and row that has it"),
        ("base_model: meta", "# base_model: meta", "base_model: is missing; without it mergekit"),
        ("dtype: bfloat16", "dtype: float16", "dtype: must be one of float32, bfloat16, not 'fl"),
        ("# What:     English", "# To change: x\n# What:     English", "are in another order"),
    ],
)
def test_what_is_wrong_with_a_header_is_named(old, new, message, tmp_path):
    text = (ROOT / "recipes/swahili.yml").read_text()
    assert old in text
    file = tmp_path / "recipes" / "swahili.yml"
    file.parent.mkdir()
    file.write_text(text.replace(old, new))
    assert any(message in problem for problem in problems_of(file))
