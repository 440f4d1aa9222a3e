"""One model as a merge: a recipe of mergekit's `passthrough`, or a model without a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from layerswap_method.checkpoint.compatible import merge_problems
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.document import Block, Entry, Recipe
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import LazyModel, Merge, build_merge


class PassthroughRecipe(Recipe):
    """One model as it is, with its adapter, in another dtype."""

    merge_method: Literal["passthrough"]
    models: tuple[Entry, ...] = Field(min_length=1, max_length=1)
    parameters: Annotated[Frozen, Block] = Frozen()

    def why_mergekit(self) -> str | None:
        """Return why only mergekit can merge this recipe; None where files are enough."""
        if self.base_model not in (None, self.models[0].model):
            return "its base_model is another model"
        return super().why_mergekit()


def merge_by_copy(recipe: PassthroughRecipe, models: Mapping[str, Model]) -> Merge:
    """Return the merge; see `merge_models`."""
    return merge_of_one(models[recipe.models[0].model], recipe.dtype, recipe.out_dtype)


def merge_of_one(model: Model, dtype: str | None = None, out_dtype: str | None = None) -> Merge:
    """Return one model, with its adapter if there is one, as a merge. Raises as `merge_models`."""
    lazy_model = LazyModel.read(model)
    InputError.raise_any(model.name, merge_problems([lazy_model.checkpoint]))
    mix = partial(lazy_model.copy_mix, dtype=dtype, out_dtype=out_dtype)
    return build_merge([lazy_model], mix, lazy_model, out_dtype or dtype)
