"""Who makes the weights of a cell: decided once, when it is planned, and read by all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ablations.models.find import Expert
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.compatible import own_problems
from layerswap_method.checkpoint.lora import is_lora
from layerswap_method.errors import InputError
from layerswap_method.methods.table import why_mergekit
from layerswap_method.recipe.document import Recipe

MadeBy = Literal["files", "mergekit", "engine"]
"""Who makes the weights of a model: this package, tensor by tensor from the files of its experts;
mergekit; or an engine of its own, which loads one expert that is not read by tensors (quantised
weights, pickles, an adapter that changes no weights)."""


def made_by(recipe: Recipe, experts: Mapping[str, Expert]) -> MadeBy:
    """Return who makes the model of a recipe of experts, which are by their references.

    `why_mergekit` says why mergekit.

    Raises:
        InputError: for an adapter whose config is damaged.
    """
    if why_mergekit(recipe, {name: experts[name] for name in recipe.references}) is not None:
        return "mergekit"
    single = None if recipe.unmerged is None else experts[recipe.unmerged]
    return "files" if single is None or _is_read_by_tensors(single) else "engine"


def headers_tell(recipe: Recipe, maker: MadeBy) -> bool:
    """Return whether headers alone tell what a model's tensors are made of: nothing is measured."""
    return maker == "files" and not recipe.needs_deltas


def _is_read_by_tensors(single: Expert) -> bool:
    """Return whether one model can be read as tensors to be loaded, with its adapter."""
    if single.adapter is not None:
        return is_lora(single.adapter)
    try:
        checkpoint = read_checkpoint(single.name, single.folder)
    except InputError:  # the engine reads other forms, or says what is wrong
        return False
    return not any(own_problems(checkpoint))
