"""A recipe of mergekit's `linear`: a weighted average of whole models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from layerswap_method.checkpoint.compatible import Checked
from layerswap_method.frozen import Described, Frozen
from layerswap_method.recipe.document import Block, Entry, Recipe
from layerswap_method.recipe.references import same_model_key
from layerswap_method.tensors import Merge, OpenModel, TensorMix, build_merge


class LinearParameters(Described):
    """The parameters of one model, under its ``parameters:``."""

    weight: float = Field(allow_inf_nan=False)


class LinearEntry(Entry):
    """One of the models of a recipe."""

    parameters: LinearParameters


class LinearRecipe(Recipe):
    """A weighted average of whole models."""

    merge_method: Literal["linear"]
    models: tuple[LinearEntry, ...] = Field(min_length=1)
    parameters: Annotated[Frozen, Block] = Frozen()

    def contradictions(self) -> Iterator[str]:
        """Yield models that are listed twice, and weights that sum to 0."""
        keys = [same_model_key(entry.model) for entry in self.models]
        for position, entry in enumerate(self.models):
            if keys.index(keys[position]) != position:
                yield (
                    f"models[{position}] ({entry.model}) is listed twice; mergekit refuses that, "
                    "too"
                )
        if sum(entry.parameters.weight for entry in self.models) == 0:
            yield "models: the weights sum to 0"

    def why_mergekit(self) -> str | None:
        """Return why only mergekit can merge this recipe; None where files are enough."""
        if self.base_model is None or self.base_model != self.models[0].model:
            return "its base_model is not its first model, so mergekit adds that to the sum"
        if any(entry.parameters.weight < 0 for entry in self.models):
            return "a weight is negative"
        if self.out_dtype not in (None, self.dtype):
            return "mergekit's linear rounds twice where out_dtype is another than dtype"
        return super().why_mergekit()


def merge_by_average(
    recipe: LinearRecipe, models: Mapping[str, OpenModel], checked: Checked
) -> Merge:
    """Return the merge; see `merge_models`. The first model is the donor."""
    inputs = [models[entry.model] for entry in recipe.models]
    weights = [entry.parameters.weight for entry in recipe.models]

    def mix(name: str) -> TensorMix:
        terms = tuple(
            model.term(name, weight)
            for model, weight in zip(inputs, weights, strict=True)
            if weight
        )
        return TensorMix(terms=terms, load_dtype=recipe.dtype)

    return build_merge(inputs, mix, recipe.written_dtype, checked)
