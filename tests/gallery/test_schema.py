"""The JSON schema takes every shipped recipe, and refuses what the types refuse."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ablations.gallery.find import FIELDS, SCHEMA_LINE, read_header
from ablations.gallery.schema import FILE, recipe_schema, schema_text
from tests.standins.recipe_files import RECIPES, ROOT, load

VALIDATOR = jsonschema.Draft202012Validator(recipe_schema())


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_valid_and_names_the_schema(recipe: str) -> None:
    assert list(VALIDATOR.iter_errors(load(recipe))) == []
    path = ROOT / recipe
    header = read_header(path.read_text())
    assert tuple(header) == FIELDS
    assert all(header.values())
    (line,) = [each for each in path.read_text().splitlines() if each.startswith(SCHEMA_LINE)]
    named = (path.parent / line.removeprefix(SCHEMA_LINE)).resolve()
    assert named == ROOT / "recipes" / FILE


def test_the_file_is_what_the_types_give() -> None:
    assert (ROOT / "recipes" / FILE).read_text() == schema_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"botom_layers": 1}},
        {"parameters": {"bottom_layers": -1}},
        {"parameters": {"placement": "upper"}},
        {"models": [{"model": "a", "parameters": {"role": "tsak"}}, {"model": "b"}]},
        {"tokeniser": "base"},
        {"base_model": 3},
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors({**load("recipes/swahili.yml"), **change}))
