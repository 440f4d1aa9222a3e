"""A `layer_swap` recipe, read into typed values with every problem at once.

Knows the models and parameters of the method; not checkpoints or tensors. What all recipes share
is in `layerswap_method.recipe.document`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictFloat, field_validator

from layerswap_method.algorithm.plan import ROLES
from layerswap_method.errors import InputError, nearest
from layerswap_method.frozen import Frozen
from layerswap_method.layer_swap.spec import LayerSwapSpec
from layerswap_method.recipe.document import (
    Block,
    RecipeDocument,
    Reference,
    read_form,
)
from layerswap_method.recipe.parameters import Place, number_hint, shown
from layerswap_method.recipe.references import same_model_key


class ExpertParameters(Frozen):
    """What stands under one model's ``parameters:``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    role: Literal["task", "language"] | None = None
    """Which expert the model is; none for a base that is listed among the models."""

    weight: Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Weight within the soup of its role; a finite number, 0 or more."""

    @field_validator("role", mode="before")
    @classmethod
    def _check_role(cls, value: Any) -> Any:
        if value == "base":
            raise ValueError(
                "role is 'base'; the base is named by base_model: at the recipe's top and needs no "
                "role: drop this line"
            )
        if value not in ROLES:
            hint = nearest(value, ROLES) if isinstance(value, str) else ""
            raise ValueError(f"role is {shown(value)}; it must be task or language{hint}")
        return value

    @field_validator("weight", mode="before")
    @classmethod
    def _check_weight(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"weight is {shown(value)}; it must be one number{number_hint(value)}")
        if not 0 <= value <= sys.float_info.max:
            raise ValueError(f"weight is {value}; it must be finite and 0 or more")
        return value


class ExpertEntry(Frozen):
    """One of the models of a recipe."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: Reference
    """A folder, a hub id, or either with ``+adapter``."""

    parameters: Annotated[ExpertParameters, Block] = ExpertParameters()
    """Role and weight."""


class LayerSwapDocument(RecipeDocument):
    """A `layer_swap` recipe as its author writes it."""

    merge_method: Literal["layer_swap"]
    models: tuple[ExpertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 2})
    """The experts, one or more of each role; the base need not be listed."""

    parameters: Annotated[LayerSwapSpec, Block] = LayerSwapSpec()
    """Which layers are swapped, and how the rest is averaged."""


@dataclass(frozen=True)
class InputModel:
    """One input of a merge."""

    reference: Any
    """mergekit's `ModelReference`; printed as ``path`` or ``path+adapter``."""

    role: str | None
    """`task`, `language`, or None for a base that gives only config, tokenizer and `base`."""

    weight: float
    """Weight within the soup of its role; 0 or more."""


@dataclass(frozen=True)
class Recipe:
    """What a `layer_swap` merge is asked to do."""

    spec: LayerSwapSpec
    """The top-level parameters."""

    models: tuple[InputModel, ...]
    """Every input with a role, in the recipe's order."""

    base_model: Any
    """mergekit's `ModelReference`: donor of config and tokenizer, and where changes are measured
    from."""

    def by_role(self, role: str) -> tuple[InputModel, ...]:
        """Return the inputs of one role, in the recipe's order."""
        return tuple(model for model in self.models if model.role == role)


def read_recipe(config: Any, source: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe, or raise one error that lists every problem.

    Args:
        config: the recipe with ``merge_method: layer_swap``, as YAML gives it or as mergekit's
            `MergeConfiguration`.
        source: the recipe before mergekit parsed it, to find keys that mergekit ignored.

    Raises:
        InputError: with all problems, each with its place and the nearest valid name.
    """
    document, problems, faulty = read_form(LayerSwapDocument, config, source)
    if document is not None:
        problems += _problems(document, faulty)
    if problems or document is None:
        raise InputError.from_problems("layer_swap recipe", problems)
    models = (
        InputModel(entry.model, entry.parameters.role, entry.parameters.weight)
        for entry in document.models
        if entry.parameters.role is not None
    )
    return Recipe(spec=document.parameters, models=tuple(models), base_model=document.base_model)


def _problems(document: LayerSwapDocument, faulty: set[Place]) -> Iterator[str]:
    """Yield what is wrong beyond the form of single values."""
    base, experts = document.base_model, document.models
    found = list(_model_problems(document, faulty))
    yield from found
    if not found and not any(place[0] == "models" for place in faulty):
        yield from _role_problems(experts)
    if base is None:
        tasks = (str(entry.model) for entry in experts if entry.parameters.role == "task")
        yield (
            "base_model is missing: mergekit would copy config and tokenizer from a model drawn at "
            f"random; write base_model: {next(tasks, '...')} (or the pretrained parent of the "
            "experts)"
        )
    elif ("parameters",) not in faulty and document.parameters.needs_deltas:
        yield from _base_problems(document.parameters, base, experts)


def _model_problems(document: LayerSwapDocument, faulty: set[Place]) -> Iterator[str]:
    """Yield models without a role that are no base, and models that are listed twice."""
    base, seen = document.base_model, dict[str, str]()
    for i, entry in enumerate(document.models):
        where, key, given = f"models[{i}] ({entry.model})", same_model_key(entry.model), entry.model
        parameters = entry.parameters
        if parameters.role is None and ("models", i, "parameters") not in faulty:
            if given == base:
                if "weight" in parameters.model_fields_set:
                    yield f"{where}: weight has no effect on the base, which has no role; drop it"
            elif base is not None and key == same_model_key(base):
                same = f"write it in the same way ({base}), or leave it out"
                yield f"{where} is the base_model; {same}"
            else:
                yield f"{where} has no role; write role: task or role: language"
        if key in seen:
            other = "" if seen[key] == str(given) else f" (first as {seen[key]})"
            yield f"{where} is listed twice{other}; one model plays one role"
        seen.setdefault(key, str(given))


def _role_problems(experts: Sequence[ExpertEntry]) -> Iterator[str]:
    for role in ROLES:
        weights = [e.parameters.weight for e in experts if e.parameters.role == role]
        if not weights:
            yield f"models has no model with role: {role}; one or more is needed"
        elif sum(weights) == 0:
            yield f"models: the weights of role {role} sum to 0"


def _base_problems(
    spec: LayerSwapSpec, base_model: Any, experts: Sequence[ExpertEntry]
) -> Iterator[str]:
    """Yield which expert is the base, from which the experts' changes are to be measured."""
    what = "placement: delta_share" if spec.placement == "delta_share" else "weighting: magnitude"
    for entry in experts:
        role = entry.parameters.role
        if role is not None and same_model_key(entry.model) == same_model_key(base_model):
            yield (
                f"base_model {base_model} is also the {role} expert; {what} measures how far "
                "each expert moved from the base: write the pretrained parent of the experts"
            )
