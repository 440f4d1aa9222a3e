"""A `layer_swap` recipe: its models, roles and parameters, with every problem at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from layerswap_method.average import Input, weighted_inputs
from layerswap_method.frozen import Described
from layerswap_method.layer_plan import (
    ROLES,
    LayerPlan,
    Placement,
    Source,
    build_plan,
    needed_layers,
    parse_layers,
    tensor_source,
)
from layerswap_method.recipe.document import Block, Count, Entry, Recipe
from layerswap_method.recipe.references import same_model_key

DeltaUnit = Literal["layer", "module"]
"""The unit that goes to one expert as a whole: a layer, or its attention or its MLP."""


THRESHOLD = 0.001
"""tau, as published."""


BLEND = 0.5
"""alpha, the task expert's share of a blend, as published."""

NAME = "layer_swap"
"""Name of the method in a recipe (``merge_method``)."""

Weight = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[StrictFloat, Field(ge=0, le=1)]

COUNTS = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
LETTERS = dict(zip(COUNTS, ("b", "u", "t_b", "t_u"), strict=True))
"""Parameter that counts layers -> the paper's letter."""

UNCOUNTED: Mapping[Placement, str] = {
    "layers": "language_layers names the layers: drop one of the two",
    "soup": "every layer is averaged: drop it",
    "delta_share": "the experts' changes decide: drop it",
}
"""Placement for which the swapped layers are not counted -> advice where a recipe counts them."""

_SMALLEST_SUM = 1e-30
"""Averages are computed in float32, whose smallest plain number is 1e-38."""

PARENT_ADVICE = (
    "base_model must be the parent of the experts, and an expert one that was trained from it"
)
"""Advice where an expert's change from the base is zero."""

_DELTAS = ("delta_unit", "delta_threshold", "delta_blend")


class LayerSwapSpec(Described):
    """The parameters of a recipe, under its top-level ``parameters:``; defaults are the paper's.

    Source: arXiv 2410.01335, section 4.2 (underlined defaults) and Algorithm 1.
    """

    bottom_layers: Count = 5
    """b, the layers at the embedding side taken from the language expert; 0 to L."""

    top_layers: Count = 2
    """u, the layers at the output side taken from the language expert; 0 to L."""

    bottom_transition: Count = 0
    """t_b, the averaged layers on the output side of the bottom (or of any swapped) run."""

    top_transition: Count = 0
    """t_u, the averaged layers on the input side of the top (or of any swapped) run."""

    task_weight: Weight = 1.0
    """w_task in every average of the two experts; a finite number, 0 or more."""

    language_weight: Weight = 1.0
    """w_lang in every average of the two experts; a finite number, 0 or more."""

    weighting: Literal["uniform", "magnitude"] = "uniform"
    """`uniform` averages by the weights above. `magnitude` (sections 4.2 item 5 and 5.1)
    multiplies each expert's weight by the inverse of its mean change from `base_model`: see
    `layerswap_method.methods.measured.inverse_mav`."""

    placement: Placement = "outer"
    """Where the swapped layers sit; see `layerswap_method.layer_plan.build_plan`. `soup`: nowhere,
    every layer is averaged. `delta_share`: see `layerswap_method.methods.delta_share`."""

    language_layers: StrictStr | None = Field(default=None, examples=["0-4,30,31"])
    """For `placement: layers`: the swapped layers as a string such as "0-4,30,31"."""

    seed: StrictInt = 0
    """For `placement: random`: seed of the draw."""

    delta_unit: DeltaUnit = "layer"
    """For `placement: delta_share`: what goes to one expert as a whole. With `module`, in-layer
    norms are the language expert's, as published."""

    delta_threshold: Weight = THRESHOLD
    """For `placement: delta_share`: tau, the difference of shares up to which a unit is blended."""

    delta_blend: Share = BLEND
    """For `placement: delta_share`: alpha, the task expert's share (0 to 1) of every average, the
    non-layer parameters among them; 1-alpha is the language expert's. Weights multiply it."""

    non_layer: Literal["average", "task", "language", "base"] = "average"
    """Source of embeddings, final norm, lm_head and modules other than the text decoder
    (section 4.2 item 6)."""

    layer_norms: Literal["block", "average"] = "block"
    """`block`: in-layer norms go with their layer (section 7, "unified blocks"); `average`: they
    are averaged in every layer (Algorithm 1 read literally)."""

    swap_modules: Literal["all", "attention", "mlp"] = "all"
    """The part of a layer that is swapped; everything else in the layer stays the task expert's
    (module-level swapping, arXiv 2601.22620)."""

    @model_validator(mode="after")
    def _check_combinations(self) -> LayerSwapSpec:
        total = sum(self.average_weights)
        blend = " (times delta_blend)" if self.placement == "delta_share" else ""
        if total == 0:
            raise ValueError(
                f"task_weight and language_weight{blend} are both 0: nothing to average"
            )
        if not _SMALLEST_SUM < total < 1 / _SMALLEST_SUM:
            raise ValueError(
                f"task_weight and language_weight{blend} sum to {total:g}, beyond what float32 can "
                "multiply weights by; only their ratio counts: write numbers nearer to 1"
            )
        if self.placement == "layers":
            parse_layers(needed_layers(self.language_layers))
        elif self.language_layers is not None:
            raise ValueError(
                f"language_layers has no effect with placement: {self.placement}; write "
                "placement: layers"
            )
        if self.placement in UNCOUNTED:
            # Transitions may stand next to named layers.
            counts = COUNTS[:2] if self.placement == "layers" else COUNTS
            self._refuse(counts, UNCOUNTED[self.placement])
        if self.placement != "delta_share":
            self._refuse(_DELTAS, "write placement: delta_share")
        if self.placement in ("soup", "delta_share") and self.swap_modules != "all":
            substitute = " (delta_unit: module)" if self.placement == "delta_share" else ""
            raise ValueError(
                f"swap_modules: {self.swap_modules} has no effect with placement: "
                f"{self.placement}; drop it{substitute}"
            )
        return self

    def _refuse(self, names: tuple[str, ...], advice: str) -> None:
        """Raise for parameters that were written and have no effect with this placement."""
        idle = [name for name in names if name in self.model_fields_set]
        if idle:
            raise ValueError(
                f"{' and '.join(sorted(idle))} {'has' if len(idle) == 1 else 'have'} no effect "
                f"with placement: {self.placement}; {advice}"
            )

    @property
    def average_weights(self) -> tuple[float, float]:
        """The weights of (task, language) in every average of the two."""
        if self.placement != "delta_share":
            return self.task_weight, self.language_weight
        # 12 digits: 1 - 0.9 is meant as 0.1, not as the float next to it.
        language_blend = round(1 - self.delta_blend, 12)
        return self.delta_blend * self.task_weight, language_blend * self.language_weight

    @property
    def delta_setting(self) -> str:
        """The setting that asks for the experts' changes, as a recipe writes it."""
        is_placed = self.placement == "delta_share"
        return "placement: delta_share" if is_placed else "weighting: magnitude"

    def plan(self, num_layers: int) -> LayerPlan:
        """Return the layer plan for a model of `num_layers` layers."""
        return build_plan(
            num_layers,
            bottom_layers=self.bottom_layers,
            top_layers=self.top_layers,
            bottom_transition=self.bottom_transition,
            top_transition=self.top_transition,
            placement=self.placement,
            language_layers=self.language_layers,
            seed=self.seed,
        )

    def tensor_source(self, name: str, layer: int | None, plan: LayerPlan) -> Source:
        """Return the source of the tensor `name` in decoder layer `layer` (None: outside)."""
        return tensor_source(
            name,
            layer,
            plan,
            non_layer=self.non_layer,
            layer_norms=self.layer_norms,
            swap_modules=self.swap_modules,
        )


class ExpertParameters(Described):
    """The parameters of one model, under its ``parameters:``."""

    role: Literal["task", "language"] | None = None
    """Which expert the model is; none for a base that is listed among the models."""

    weight: Weight = 1.0
    """Weight within the soup of its role; a finite number, 0 or more."""


class ExpertEntry(Entry):
    """One of the models of a recipe."""

    parameters: Annotated[ExpertParameters, Block] = ExpertParameters()
    """Role and weight."""


class LayerSwapRecipe(Recipe):
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
    def references(self) -> tuple[str, ...]:
        """Return every model that is read, each once, task experts first."""
        ordered = sorted(self.experts, key=lambda entry: entry.parameters.role != "task")
        return tuple(dict.fromkeys([*(entry.model for entry in ordered), str(self.base_model)]))

    def inputs(self, scales: Sequence[float] | None = None) -> list[Input]:
        """Return the experts in the recipe's order, with their measured scales, and the base."""
        scales = scales or [1.0] * len(self.experts)
        experts = [
            Input(entry.parameters.role, entry.parameters.weight, scale=scale)
            for entry, scale in zip(self.experts, scales, strict=True)
        ]
        return [*experts, Input(is_base=True)]

    @classmethod
    def layer_counts(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the layer counts, none of a placement that does not read them."""
        if parameters.get("placement") in UNCOUNTED:
            return {}
        return {
            name: parameters.get(name, LayerSwapSpec.model_fields[name].default) for name in COUNTS
        }

    def layer_plan(self, num_layers: int) -> LayerPlan | None:
        """Return the source of every layer; None with ``placement: delta_share``."""
        spec = self.parameters
        return None if spec.placement == "delta_share" else spec.plan(num_layers)

    def plan_warnings(self, plan: LayerPlan) -> Iterator[str]:
        """Yield that the merge is the language expert with layers of the task expert."""
        spec, swapped = self.parameters, len(plan.layers_from("language"))
        if spec.swap_modules != "all" or plan.modules or 2 * swapped <= plan.num_layers:
            return
        is_counted = spec.placement not in ("layers", "delta_share")
        advice = "; to swap less, write smaller bottom_layers and top_layers" if is_counted else ""
        yield (
            f"{swapped} of the {plan.num_layers} layers come from the language expert, more than "
            f"half of the model (the paper swaps 7 of 32){advice}"
        )

    @property
    def roles(self) -> Mapping[str, str]:
        """Model -> its role; a base that is an expert, too, has the expert's."""
        experts = {entry.model: str(entry.parameters.role) for entry in self.experts}
        return {str(self.base_model): "base", **experts}

    @property
    def moved_part(self) -> str | None:
        """The part of each layer that alone is swapped, if ``swap_modules`` names one."""
        part = self.parameters.swap_modules
        return None if part == "all" else part

    @property
    def names_parent(self) -> bool:
        """Whether `base_model` is what the other models were trained from: for most settings."""
        return True

    @property
    def rows_from(self) -> tuple[str, ...]:
        """The models whose embeddings and head the merge has, one or more."""
        models = [*(entry.model for entry in self.experts), str(self.base_model)]
        spec = self.parameters
        mean = weighted_inputs("embeddings", spec.non_layer, self.inputs(), spec.average_weights)
        return tuple(models[position] for position in mean.inputs)

    @property
    def weights_from(self) -> tuple[str, ...]:
        """The models of which the merge has weights: not always the base."""
        return *(entry.model for entry in self.experts), *self.rows_from

    @property
    def needs_deltas(self) -> bool:
        """Whether the experts' changes from the base must be measured: all weights are read."""
        spec = self.parameters
        return spec.weighting == "magnitude" or spec.placement == "delta_share"

    def contradictions(self) -> Iterator[str]:
        """Yield what is wrong beyond the form of single values."""
        yield from super().contradictions()
        yield from self._entry_problems()
        yield from self._role_problems()
        yield from self._base_problems()

    def _entry_problems(self) -> Iterator[str]:
        """Yield models without a role, and models that are listed twice."""
        base = self.base_model
        references: dict[str, str] = {}  # of each model, as it is written first
        for position, entry in enumerate(self.models):
            where, key = f"models[{position}] ({entry.model})", same_model_key(entry.model)
            if entry.parameters.role is None:
                if entry.model == base:
                    if "weight" in entry.parameters.model_fields_set:
                        yield f"{where}: weight has no effect on the base, which has no role"
                elif base is not None and key == same_model_key(base):
                    yield (
                        f"{where} is the base_model; write it in the same way ({base}), or leave "
                        "it out"
                    )
                else:
                    yield f"{where} has no role; write role: task or role: language"
            if key in references:
                first = references[key]
                spelling = "" if first == entry.model else f" (first as {first})"
                yield f"{where} is listed twice{spelling}; a model has one role"
            references.setdefault(key, entry.model)

    def _role_problems(self) -> Iterator[str]:
        """Yield roles without a model, or without a weight."""
        for role in ROLES:
            weights = [
                entry.parameters.weight for entry in self.models if entry.parameters.role == role
            ]
            if not weights:
                yield f"models has no model with role: {role}; one or more is needed"
            elif not 0 < sum(weights) < math.inf:
                yield f"models: the weights of role {role} sum to {sum(weights):g}"

    def _base_problems(self) -> Iterator[str]:
        """Yield a base that is missing, or that is an expert where changes from it count."""
        base, parent = self.base_model, "the pretrained parent of the experts"
        if base is None:
            tasks = (entry.model for entry in self.experts if entry.parameters.role == "task")
            yield (
                "base_model is missing: mergekit would copy config and tokenizer from a model "
                f"drawn at random; write base_model: {next(tasks, '...')} (or {parent})"
            )
            return
        for entry in self.experts if self.needs_deltas else ():
            if same_model_key(entry.model) == same_model_key(base):
                yield (
                    f"base_model {base} is also the {entry.parameters.role} expert; "
                    f"{self.parameters.delta_setting} measures how far each expert moved from the "
                    f"base: write {parent}"
                )
