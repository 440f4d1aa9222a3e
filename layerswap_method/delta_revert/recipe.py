"""A `delta_revert` recipe, read with every problem at once. Knows no checkpoints or tensors.

What all recipes share is in `layerswap_method.recipe.document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from layerswap_method.delta_revert.spec import RevertSpec
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.document import Block, RecipeDocument, Reference, read_form
from layerswap_method.recipe.references import same_model_key


class NoParameters(Frozen):
    """What stands under one model's ``parameters:``: nothing."""

    advice: ClassVar[Mapping[str, str]] = {
        "role": "delta_revert has no roles: the base is named by base_model; drop this line"
    }
    """Name that does not belong here -> why."""


class RevertEntry(Frozen):
    """One of the models of a recipe."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: Reference
    """A folder, a hub id, or either with ``+adapter``."""

    parameters: Annotated[NoParameters, Block] = NoParameters()
    """None."""


class RevertDocument(RecipeDocument):
    """A `delta_revert` recipe as its author writes it."""

    merge_method: Literal["delta_revert"]
    models: tuple[RevertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 1})
    """The expert; the base may be listed too."""

    parameters: Annotated[RevertSpec, Block] = Field(default=None, validate_default=True)
    """What goes back to the base."""


@dataclass(frozen=True)
class RevertRecipe:
    """What a `delta_revert` merge is asked to do."""

    spec: RevertSpec
    """The top-level parameters."""

    expert: Any
    """mergekit's `ModelReference` of the fine-tuned model."""

    base_model: Any
    """mergekit's `ModelReference` of what it was fine-tuned from: donor of what is reverted, and of
    config and tokenizer."""


def read_revert_recipe(config: Any, source: Mapping[str, Any] | None = None) -> RevertRecipe:
    """Return the recipe, or raise one error that lists every problem.

    Args:
        config: the recipe with ``merge_method: delta_revert``, as YAML gives it or as mergekit's
            `MergeConfiguration`.
        source: the recipe before mergekit parsed it, to find keys that mergekit ignored.

    Raises:
        InputError: with all problems, each with its place and the nearest valid name.
    """
    document, problems, _ = read_form(RevertDocument, config, source)
    if document is not None:
        problems += _problems(document)
    if problems or document is None:
        raise InputError.from_problems("delta_revert recipe", problems)
    (expert,) = _experts(document)
    return RevertRecipe(spec=document.parameters, expert=expert, base_model=document.base_model)


def reverted_layers(spec: RevertSpec, num_layers: int) -> frozenset[int]:
    """Return the layers that go back whole.

    Raises:
        InputError: with the numbers, where they do not fit.
    """
    try:
        return spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error


def _experts(document: RevertDocument) -> list[Any]:
    """Return the models that are not the base."""
    base = None if document.base_model is None else same_model_key(document.base_model)
    return [entry.model for entry in document.models if same_model_key(entry.model) != base]


def _problems(document: RevertDocument) -> Iterator[str]:
    """Yield what is wrong beyond the form of single values."""
    base, experts = document.base_model, _experts(document)
    for key in ("tokenizer", "tokenizer_source"):
        if getattr(document, key) is not None:
            yield (
                f"{key} has no place here: rows are compared one by one, so expert and base must "
                "share a vocabulary; drop the line"
            )
    for i, entry in enumerate(document.models):
        if entry.model not in (*experts, base):
            yield (
                f"models[{i}] ({entry.model}) is the base_model; write it in the same way "
                f"({base}), or leave it out"
            )
    if base is None:
        yield (
            "base_model is missing: write base_model: with the checkpoint that the expert was "
            "fine-tuned from"
        )
    elif len(experts) != 1:
        listed = ", ".join(str(model) for model in experts) or "none"
        yield (
            f"models: lists {len(experts)} models beside the base_model ({listed}); delta_revert "
            "takes one expert"
        )
