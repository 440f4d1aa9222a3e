"""The table of the merge methods: all that differs between them, in one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from layerswap_method.checkpoint.compatible import Checked
from layerswap_method.checkpoint.lora import is_lora, read_adapter_config, unsupported_kind
from layerswap_method.errors import InputError
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.check import check_models
from layerswap_method.methods.delta_revert import (
    DeltaRevertRecipe,
    merge_by_features,
    revert_measured,
    revert_outline,
)
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.layer_swap_merge import (
    merge_by_layers,
    swap_measured,
    swap_outline,
)
from layerswap_method.methods.linear import LinearRecipe, merge_by_average
from layerswap_method.methods.passthrough import PassthroughRecipe, merge_by_copy
from layerswap_method.output import PLAN_FILE, REVERT_PLAN_FILE
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge, OpenModel


class Method(NamedTuple):
    """One merge method."""

    recipe: type[Recipe]
    """What its recipes say."""

    build: Callable[[Any, Mapping[str, OpenModel], Checked], Merge]
    """From a recipe, its models and what was checked of them to the merge, as a value."""

    card: str
    """How a model card names it."""

    plan_file: str | None = None
    """The file next to the weights that says what came from where; methods of ours have one, and a
    kernel of the method's name in `mergekit_plugin/kernels/plain.py`."""

    outline: Callable[[Any, LayerPlan], Iterator[str]] | None = None
    """From a recipe and its `layer_plan` to the lines of log and card that need no files; None
    where no recipe has a plan."""

    measured: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    """From the content of a plan file to what was measured of the experts; None for nothing."""

    counted: str = ""
    """Where the layers come from that a recipe counts, in words."""


METHODS: Mapping[str, Method] = {
    "layer_swap": Method(
        recipe=LayerSwapRecipe,
        build=merge_by_layers,
        card="[Layer Swapping](https://arxiv.org/abs/2410.01335)",
        plan_file=PLAN_FILE,
        outline=swap_outline,
        measured=swap_measured,
        counted="from the language expert",
    ),
    "delta_revert": Method(
        recipe=DeltaRevertRecipe,
        build=merge_by_features,
        card="[Delta Revert](https://arxiv.org/abs/2410.01335)",
        plan_file=REVERT_PLAN_FILE,
        outline=revert_outline,
        measured=revert_measured,
        counted="set back to the base",
    ),
    "linear": Method(
        recipe=LinearRecipe,
        build=merge_by_average,
        card="[Linear](https://arxiv.org/abs/2203.05482)",
    ),
    "passthrough": Method(recipe=PassthroughRecipe, build=merge_by_copy, card="Passthrough"),
}
"""Name in a recipe (``merge_method``) -> the method."""

OUR_METHODS = tuple(name for name, method in METHODS.items() if method.plan_file is not None)
"""Merge methods of this project; the others are mergekit's, for which files are enough, too."""

PLAN_FILES = tuple(filter(None, (method.plan_file for method in METHODS.values())))
"""Files of which a merge by a method of this project has one."""


def merge_models(recipe: Recipe, model_files: Mapping[str, Model]) -> Merge:
    """Return the merge of models (by their references) on this machine; write nothing.

    Raises `InputError` for files, adapters and models that do not fit, with every problem of the
    first kind found.
    """
    return merge_open_models(recipe, open_models([recipe], model_files))


def open_models(
    recipes: Iterable[Recipe], model_files: Mapping[str, Model]
) -> dict[str, OpenModel]:
    """Return the models of recipes by their references, each opened once."""
    references = dict.fromkeys(name for recipe in recipes for name in recipe.references)
    return {reference: OpenModel.read(model_files[reference]) for reference in references}


def merge_open_models(recipe: Recipe, opened: Mapping[str, OpenModel]) -> Merge:
    """Return the merge of models that are open, others among them; see `merge_models`."""
    models = {reference: opened[reference] for reference in recipe.references}
    checked = check_models(recipe, {name: model.checkpoint for name, model in models.items()})
    InputError.raise_any(f"{recipe.merge_method} recipe", checked.problems)
    return METHODS[recipe.merge_method].build(recipe, models, checked)


def why_mergekit(recipe: Recipe, model_files: Mapping[str, Model]) -> str | None:
    """Return why only mergekit can merge a recipe of models; None where their files are enough.

    `model_files` (by their references) are all of the recipe, or those whose places are known.
    Raises `InputError` for an adapter whose config is damaged.
    """
    if (reason := recipe.why_mergekit()) is not None:
        return reason
    for reference, model in model_files.items():
        if model.adapter is not None and is_lora(model.adapter):
            kind = unsupported_kind(read_adapter_config(model.adapter))
            if kind is not None:
                return f"the adapter of {reference} is more than low-rank changes: {kind}"
    return None
