"""A `delta_revert` recipe as mergekit parsed it, read with every problem at once.

Knows the fields of mergekit's `MergeConfiguration` (duck-typed, nothing is imported); not
checkpoints or tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from layerswap_method.delta_revert.spec import SHARED_PARAMETERS, RevertSpec
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.keys import key_problems
from layerswap_method.recipe.parameters import read_parameters
from layerswap_method.recipe.references import same_model_key


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


def read_revert_recipe(
    config: Any, source: Mapping[str, Any] | None = None, *, known: Any = None
) -> RevertRecipe:
    """Return the recipe, or raise one error that lists every problem.

    Args:
        config: mergekit's `MergeConfiguration` with ``merge_method: delta_revert``; `models:` may
            have become `modules:` already, as mergekit's planner makes it.
        source: the YAML document before mergekit parsed it, to find keys that mergekit ignored.
        known: `mergekit_api.recipe_fields()`; needed with `source`.

    Raises:
        InputError: with all problems, each with its place and the nearest valid name.
    """
    problems = list(key_problems(source, known, SHARED_PARAMETERS)) if source is not None else []
    spec, found = read_parameters(RevertSpec, config.parameters or {})
    problems += found
    problems += _structure_problems(config, planned=source is None)
    entries = _entries(config)
    experts = []
    for place, entry in entries:
        problems += [f"{place} ({entry.model}){text}" for text in _input_problems(entry)]
        if config.base_model is None or same_model_key(entry.model) != same_model_key(
            config.base_model
        ):
            experts.append(entry.model)
        elif entry.model != config.base_model:
            problems.append(
                f"{place} ({entry.model}) is the base_model; write it in the same way "
                f"({config.base_model}), or leave it out"
            )
    if config.base_model is None:
        problems.append(
            "base_model is missing: write base_model: with the checkpoint that the expert was "
            "fine-tuned from"
        )
    elif entries and len(experts) != 1:
        listed = ", ".join(str(model) for model in experts) or "none"
        problems.append(
            f"models: lists {len(experts)} models beside the base_model ({listed}); delta_revert "
            "takes one expert"
        )
    if problems or spec is None:
        raise InputError.from_problems("delta_revert recipe", problems)
    return RevertRecipe(spec=spec, expert=experts[0], base_model=config.base_model)


def reverted_layers(spec: RevertSpec, num_layers: int) -> frozenset[int]:
    """Return the layers that go back whole.

    Raises:
        InputError: with the numbers, where they do not fit.
    """
    try:
        return spec.layers(num_layers)
    except ValueError as error:
        raise InputError(f"delta_revert recipe: {error}") from error


def _structure_problems(config: Any, *, planned: bool) -> Iterator[str]:
    """Yield what other methods take and this one does not.

    Args:
        config: mergekit's `MergeConfiguration`.
        planned: whether mergekit's planner may have rewritten `models:`.
    """
    for key in ("slices",) if planned else ("slices", "modules"):
        if getattr(config, key, None):
            yield f"delta_revert keeps every layer in its place; write models: in place of {key}:"
    for key in ("tokenizer", "tokenizer_source"):
        if getattr(config, key, None) is not None:
            yield (
                f"{key} has no place here: rows are compared one by one, so expert and base must "
                "share a vocabulary; drop the line"
            )


def _entries(config: Any) -> list[tuple[str, Any]]:
    """Return (place, input) of the models, each once, before or after mergekit's planner."""
    if config.models:
        return [(f"models[{i}]", entry) for i, entry in enumerate(config.models)]
    found: dict[str, tuple[str, Any]] = {}
    for name, module in (config.modules or {}).items():
        inputs = module.models or [s for out in module.slices or () for s in out.sources]
        for i, entry in enumerate(inputs):
            found.setdefault(str(entry.model), (f"modules.{name}[{i}]", entry))
    return list(found.values())


def _input_problems(entry: Any) -> Iterator[str]:
    """Yield what is wrong with one input, to be read after its place."""
    for name in entry.parameters or {}:
        if name in SHARED_PARAMETERS:
            yield f": {name} belongs under the recipe's top parameters:"
        elif name == "role":
            yield ": delta_revert has no roles: the base is named by base_model; drop this line"
        else:
            hint = nearest(str(name), SHARED_PARAMETERS)
            yield f": unknown parameter {name!r}{hint}; models take none here"
