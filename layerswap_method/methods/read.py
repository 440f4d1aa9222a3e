"""Recipes read into the types of their methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from layerswap_method.errors import InputError, NeedsMergekit
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.linear import LinearRecipe
from layerswap_method.methods.passthrough import PassthroughRecipe
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.strict_yaml import read_text_and_yaml

OWN: Mapping[str, type[Recipe]] = {r.method(): r for r in (LayerSwapRecipe, DeltaRevertRecipe)}
"""Merge methods of this project -> the type of their recipes."""

_MERGEKITS: Mapping[str, type[Recipe]] = {r.method(): r for r in (LinearRecipe, PassthroughRecipe)}
"""Merge methods of mergekit for which files are enough -> the type of such recipes."""


class RecipeFile(NamedTuple):
    """A recipe as text, and as YAML gives it."""

    text: str
    document: Mapping[str, Any]


def read_recipe_file(path: Path) -> RecipeFile:
    """Return a recipe's file. Raises `InputError` where it cannot be read or is not a recipe."""
    text, document = read_text_and_yaml(path)
    if not isinstance(document, dict) or not isinstance(document.get("merge_method"), str):
        raise InputError(f"{path}: is not a recipe; write merge_method:, models: and base_model:")
    return RecipeFile(text, document)


def read_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return a recipe as a typed value.

    Raises `NeedsMergekit` where only mergekit can read it, `InputError` with every problem of a
    recipe that is wrong.
    """
    method = str(document.get("merge_method"))
    if method in OWN:
        return OWN[method].read(document)
    if method not in _MERGEKITS:
        raise NeedsMergekit(f"its method is {method}")
    try:
        _MERGEKITS[method].model_validate(document)
    except ValueError as error:
        more = f"what the recipe says of {method} is more than models and weights"
        raise NeedsMergekit(more) from error
    return _MERGEKITS[method].read(document)


def read_own_recipe(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe of this project's methods; None for any other. See `read_recipe`."""
    kind = OWN.get(str(document.get("merge_method")))
    return None if kind is None else kind.read(document)


def recipe_by_files(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe that its models' files are enough for, else None. See `read_recipe`."""
    try:
        recipe = read_recipe(document)
    except NeedsMergekit:
        return None
    return None if recipe.why_mergekit() is not None else recipe
