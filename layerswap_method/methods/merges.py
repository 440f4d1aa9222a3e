"""From a typed recipe to its merge: each method has a type of recipes and a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.methods.delta_revert import DeltaRevertRecipe, merge_by_features
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import merge_by_layers
from layerswap_method.methods.linear import LinearRecipe, merge_by_average
from layerswap_method.methods.passthrough import PassthroughRecipe, merge_by_copy
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge

_FUNCTIONS: Mapping[type[Recipe], Callable[[Any, Mapping[str, Model]], Merge]] = {
    LayerSwapRecipe: merge_by_layers,
    DeltaRevertRecipe: merge_by_features,
    LinearRecipe: merge_by_average,
    PassthroughRecipe: merge_by_copy,
}


def merge_models(recipe: Recipe, models: Mapping[str, Model]) -> Merge:
    """Return the merge of models (by their references) on this machine; write nothing.

    Raises `InputError` for files, adapters and models that do not fit, with every problem of the
    first kind found.
    """
    return _FUNCTIONS[type(recipe)](recipe, models)


def merge_or_none(recipe: Recipe, models: Mapping[str, Model]) -> Merge | None:
    """Return the merge; None where it is refused, as adapters that mergekit can merge."""
    try:
        return merge_models(recipe, models)
    except InputError:
        return None
