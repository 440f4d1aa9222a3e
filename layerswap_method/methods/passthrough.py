"""One model as a merge: a recipe of mergekit's `passthrough`, or a model without a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from layerswap_method.checkpoint.compatible import Checked
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.methods.check import check_models
from layerswap_method.recipe.document import Block, Entry, Recipe
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge, OpenModel, build_merge


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

    @property
    def unmerged(self) -> str | None:
        """The reference of the model that the recipe leaves as it is; None for a merge."""
        is_plain = self.model_fields_set <= {"merge_method", "models"}
        return self.models[0].model if is_plain else None


def merge_by_copy(
    recipe: PassthroughRecipe, models: Mapping[str, OpenModel], checked: Checked
) -> Merge:
    """Return the merge; see `merge_models`."""
    model = models[recipe.models[0].model]
    mix = partial(model.copy_mix, dtype=recipe.dtype, out_dtype=recipe.out_dtype)
    return build_merge([model], mix, recipe.written_dtype, checked)


_ONE = PassthroughRecipe.read({"merge_method": "passthrough", "models": [{"model": "model"}]})


def merge_of_one(model: Model) -> Merge:
    """Return one model, with its adapter if there is one, as a merge. Raises as `merge_models`."""
    opened = OpenModel.read(model)
    checked = check_models(_ONE, {"model": opened.checkpoint})
    InputError.raise_any(model.name, checked.problems)
    return build_merge([opened], partial(opened.copy_mix, dtype=None), None, checked)
