"""Recipes read into the types of their methods: behind these doors no recipe is a dict.

`read_recipe_file` is the door for files and `file_of_document` that for what a program wrote in
place of one; `read_recipe` makes a recipe of either, or of what this program makes. Where a recipe
is also written again, as those of a study are, `read_written` keeps its document with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from layerswap_method.errors import InputError, NeedsMergekit
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.linear import LinearRecipe
from layerswap_method.methods.passthrough import PassthroughRecipe
from layerswap_method.recipe.document import Recipe
from layerswap_method.recipe.kinds import document_kind
from layerswap_method.recipe.references import named_models
from layerswap_method.recipe.strict_yaml import parse_yaml, read_text_and_yaml

_OURS: Mapping[str, type[Recipe]] = {r.method(): r for r in (LayerSwapRecipe, DeltaRevertRecipe)}

OUR_METHODS = tuple(_OURS)
"""Merge methods of this project."""

_MERGEKITS: Mapping[str, type[Recipe]] = {r.method(): r for r in (LinearRecipe, PassthroughRecipe)}
"""Merge methods of mergekit for which files are enough -> the type of such recipes."""


class RecipeFile(NamedTuple):
    """A recipe as text, and as YAML gives it."""

    name: str
    """Its path; for messages."""

    text: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class WrittenRecipe:
    """A recipe with the document that it is written as; made by `read_written` only."""

    document: Mapping[str, Any]
    """The written form, byte for byte that of `run.json`, of mergekit's file and of keys."""

    typed: Recipe | None
    """The recipe as a value; None where only mergekit can read it."""

    reason: str | None
    """Why only mergekit can merge it; None where the models' files are enough."""

    @property
    def method(self) -> str:
        """The merge method."""
        return str(self.document["merge_method"])

    @property
    def by_files(self) -> Recipe | None:
        """The recipe as a value if the models' files are enough to merge it, else None."""
        return self.typed if self.reason is None else None

    @property
    def references(self) -> tuple[str, ...]:
        """Every model, as often as the recipe names it."""
        return tuple(named_models(self.document))

    @property
    def unmerged(self) -> str | None:
        """The reference of the model that the recipe leaves as it is; None for a merge."""
        if not isinstance(self.typed, PassthroughRecipe):
            return None
        is_plain = self.typed.model_fields_set <= {"merge_method", "models"}
        return self.typed.models[0].model if is_plain else None

    @property
    def base_model(self) -> str | None:
        """The donor of config and tokenizer, where the recipe names one."""
        return self.document.get("base_model")

    @property
    def written_dtype(self) -> str | None:
        """The dtype of the written checkpoint; None keeps the files'."""
        return self.document.get("out_dtype") or self.document.get("dtype")

    @property
    def aligns_tokens(self) -> bool:
        """Whether mergekit moves the rows of the vocabulary tensors."""
        keys = ("tokenizer", "tokenizer_source")
        return any(self.document.get(key) is not None for key in keys)

    @property
    def makes_tokenizer(self) -> bool:
        """Whether the tokenizer of the merge is known only after it."""
        return self.aligns_tokens or self.document.get("chat_template") is not None


def read_recipe_file(path: Path) -> RecipeFile:
    """Return a recipe's file. Raises `InputError` where it cannot be read or is not a recipe."""
    return _checked(str(path), *read_text_and_yaml(path))


def file_of_document(document: Mapping[str, Any]) -> RecipeFile:
    """Return a recipe that a program wrote as a mapping, with its text; paths become strings.

    Raises `InputError` where it is not a recipe, or holds what YAML has no plain value for.
    """
    try:
        plain = json.loads(json.dumps(document, default=os.fspath))
    except (TypeError, ValueError) as error:
        raise InputError(f"recipe: holds a value that no recipe can hold: {error}") from error
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return _checked("recipe", text, parse_yaml(text, "recipe"))


def _checked(name: str, text: str, document: Any) -> RecipeFile:
    if not isinstance(document, dict) or not isinstance(document.get("merge_method"), str):
        kind = document_kind(document) or "; write merge_method:, models: and base_model:"
        raise InputError(f"{name}: is not a recipe{kind}")
    return RecipeFile(name, text, document)


def read_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return a recipe as a typed value.

    Raises `NeedsMergekit` where only mergekit can read it, `InputError` with every problem of a
    recipe that is wrong.
    """
    method = str(document.get("merge_method"))
    if method in _OURS:
        return _OURS[method].read(document)
    if method not in _MERGEKITS:
        raise NeedsMergekit(f"its method is {method}")
    try:
        _MERGEKITS[method].model_validate(document)
    except ValueError as error:
        raise NeedsMergekit(
            f"what the recipe says of {method} is more than models and weights"
        ) from error
    return _MERGEKITS[method].read(document)


def read_written(document: Mapping[str, Any]) -> WrittenRecipe:
    """Return a recipe of any method with its document. Raises `InputError` where it is wrong."""
    try:
        recipe = read_recipe(document)
    except NeedsMergekit as error:
        return WrittenRecipe(document, None, error.reason)
    return WrittenRecipe(document, recipe, recipe.why_mergekit())
