"""Recipes read into the types of their methods: behind these doors no recipe is a dict.

`read_recipe_file` is the door for files and `file_of_document` that for what a program wrote in
place of one; `read_recipe` makes a recipe of either, or of what this program makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.table import METHODS, OUR_METHODS
from layerswap_method.recipe.document import OtherRecipe, Recipe
from layerswap_method.recipe.kinds import document_kind
from layerswap_method.recipe.strict_yaml import parse_yaml, plain_document, read_text_and_yaml


class RecipeFile(NamedTuple):
    """A recipe as text, and as YAML gives it."""

    name: str
    """For messages; its path, if it is a file."""

    text: str
    document: Mapping[str, Any]
    path: Path | None = None
    """None of a recipe that a program wrote."""


def read_recipe_file(path: Path) -> RecipeFile:
    """Return a recipe's file. Raises `InputError` where it cannot be read or is not a recipe."""
    return _checked(str(path), *read_text_and_yaml(path), path)


def file_of_document(document: Mapping[str, Any]) -> RecipeFile:
    """Return a recipe that a program wrote as a mapping, with its text; paths become strings.

    Raises `InputError` where it is not a recipe, or holds what YAML has no plain value for.
    """
    plain = plain_document(document, "recipe")
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return _checked("recipe", text, parse_yaml(text, "recipe"))


def _checked(name: str, text: str, document: Any, path: Path | None = None) -> RecipeFile:
    if not isinstance(document, dict) or not isinstance(document.get("merge_method"), str):
        kind = document_kind(document) or "; write merge_method:, models: and base_model:"
        for key in document if isinstance(document, dict) else ():
            if key != "merge_method" and (hint := nearest(str(key), ["merge_method"], 0.8)):
                kind = f"; {key}: unknown key{hint}"
        raise InputError(f"{name}: is not a recipe{kind}")
    return RecipeFile(name, text, document, path)


def read_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return a recipe of any method as a typed value. Raises `InputError` where it is wrong.

    `Recipe.why_mergekit` says where only mergekit can merge it; what only mergekit reads is an
    `OtherRecipe`.
    """
    name = str(document.get("merge_method"))
    if name not in METHODS:
        return OtherRecipe.unread(document, f"its method is {name}")
    if name not in OUR_METHODS:
        try:
            METHODS[name].recipe.model_validate(document)
        except ValueError:
            reason = f"what the recipe says of {name} is more than models and weights"
            return OtherRecipe.unread(document, reason)
    return METHODS[name].recipe.read(document)
