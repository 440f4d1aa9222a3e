"""A `layer_swap` recipe, read into typed values with every problem at once.

Knows the models and parameters of the method; not checkpoints or tensors. What all recipes share
is in `layerswap_method.recipe.document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from layerswap_method.algorithm.coefficients import Input
from layerswap_method.algorithm.plan import ROLES
from layerswap_method.frozen import Described
from layerswap_method.layer_swap.spec import LayerSwapSpec, Weight
from layerswap_method.recipe.document import Block, Entry, RecipeDocument
from layerswap_method.recipe.parameters import Place
from layerswap_method.recipe.references import same_model_key


class ExpertParameters(Described):
    """What stands under one model's ``parameters:``."""

    role: Literal["task", "language"] | None = None
    """Which expert the model is; none for a base that is listed among the models."""

    weight: Weight = 1.0
    """Weight within the soup of its role; a finite number, 0 or more."""

    @field_validator("role", mode="before")
    @classmethod
    def _refuse_base(cls, value: Any) -> Any:
        if value == "base":
            raise ValueError(
                "role is 'base'; the base is named by base_model: at the recipe's top and needs no "
                "role: drop this line"
            )
        return value


class ExpertEntry(Entry):
    """One of the models of a recipe."""

    parameters: Annotated[ExpertParameters, Block] = ExpertParameters()
    """Role and weight."""


class LayerSwapDocument(RecipeDocument):
    """A `layer_swap` recipe as its author writes it."""

    merge_method: Literal["layer_swap"]
    models: tuple[ExpertEntry, ...] = Field(default=(), json_schema_extra={"minItems": 2})
    """The experts, one or more of each role; the base need not be listed."""

    parameters: Annotated[LayerSwapSpec, Block] = LayerSwapSpec()
    """Which layers are swapped, and how the rest is averaged."""

    @property
    def experts(self) -> tuple[ExpertEntry, ...]:
        """Return every model with a role, in the recipe's order."""
        return tuple(entry for entry in self.models if entry.parameters.role is not None)

    @property
    def vocabulary_givers(self) -> tuple[Any, ...]:
        """Return the models whose embeddings and head the merge has, one or more."""
        given = [entry.parameters for entry in self.experts]
        inputs = [*(Input(own.role, own.weight) for own in given), Input(is_base=True)]
        models = [*(entry.model for entry in self.experts), self.base_model]
        return tuple(models[i] for i in self.parameters.vocabulary_givers(inputs))

    def contradictions(self, faulty: set[Place]) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        base, experts = self.base_model, self.models
        found = list(_model_problems(self, faulty))
        yield from found
        if not found and not any(place[0] == "models" for place in faulty):
            yield from _role_problems(experts)
        if base is None:
            tasks = (str(entry.model) for entry in experts if entry.parameters.role == "task")
            yield (
                "base_model is missing: mergekit would copy config and tokenizer from a model "
                f"drawn at random; write base_model: {next(tasks, '...')} (or the pretrained "
                "parent of the experts)"
            )
        elif ("parameters",) not in faulty and self.parameters.needs_deltas:
            yield from _base_problems(self.parameters, base, self.experts)


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
            yield f"{where} is listed twice{other}; a model has one role"
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
        if same_model_key(entry.model) == same_model_key(base_model):
            yield (
                f"base_model {base_model} is also the {entry.parameters.role} expert; {what} "
                "measures how far each expert moved from the base: write the pretrained parent of "
                "the experts"
            )
