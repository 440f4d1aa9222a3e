"""Recipes read into the types of their methods, and mergekit's `linear` and `passthrough`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from layerswap_method.checkpoint.compatible import merge_problems
from layerswap_method.errors import InputError
from layerswap_method.frozen import Described, Frozen
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.recipe.document import Block, Entry, Merge, Recipe
from layerswap_method.recipe.references import Model, same_model_key
from layerswap_method.recipe.strict_yaml import read_text_and_yaml
from layerswap_method.tensors import LazyModel, TensorMix, build_merge


class LinearParameters(Described):
    """What stands under one model's ``parameters:``."""

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
        for i, entry in enumerate(self.models):
            if keys.index(keys[i]) != i:
                yield f"models[{i}] ({entry.model}) is listed twice; mergekit refuses that, too"
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

    def merge(self, models: Mapping[str, Model]) -> Merge:
        """Return the merge; see `Recipe.merge`. The first model is the donor."""
        read = [LazyModel.read(models[entry.model]) for entry in self.models]
        problems = merge_problems([model.checkpoint for model in read])
        InputError.raise_any("linear recipe", problems)
        given = list(zip(read, (entry.parameters.weight for entry in self.models), strict=True))

        def mix(name: str) -> TensorMix:
            terms = tuple(model.term(name, weight) for model, weight in given if weight)
            return TensorMix(terms=terms, load_dtype=self.dtype)

        return build_merge(read, mix, read[0], self.written_dtype)


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

    def merge(self, models: Mapping[str, Model]) -> Merge:
        """Return the merge; see `Recipe.merge`."""
        return merge_of_one(models[self.models[0].model], self.dtype, self.out_dtype)


def merge_of_one(model: Model, dtype: str | None = None, out_dtype: str | None = None) -> Merge:
    """Return one model, with its adapter if there is one, as a merge. Raises as `Recipe.merge`."""
    read = LazyModel.read(model)
    InputError.raise_any(model.name, merge_problems([read.checkpoint]))
    made = partial(read.copy_mix, dtype=dtype, out_dtype=out_dtype)
    return build_merge([read], made, read, out_dtype or dtype)


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


def read_recipe(document: Mapping[str, Any]) -> Recipe | str:
    """Return a recipe as a typed value, or why only mergekit can read and merge it.

    Raises `InputError` with every problem of a recipe that is wrong.
    """
    method = str(document.get("merge_method"))
    if method in OWN:
        return OWN[method].read(document)
    if method not in _MERGEKITS:
        return f"its method is {method}"
    try:
        _MERGEKITS[method].model_validate(document)
    except ValueError:
        return f"what the recipe says of {method} is more than models and weights"
    return _MERGEKITS[method].read(document)


def read_own_recipe(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe of this project's methods; None for any other. See `read_recipe`."""
    kind = OWN.get(str(document.get("merge_method")))
    return None if kind is None else kind.read(document)


def recipe_by_files(document: Mapping[str, Any]) -> Recipe | None:
    """Return a recipe that its models' files are enough for, else None. See `read_recipe`."""
    recipe = read_recipe(document)
    return None if isinstance(recipe, str) or recipe.why_mergekit() is not None else recipe
