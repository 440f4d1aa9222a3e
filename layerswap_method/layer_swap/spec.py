"""The parameters of a `layer_swap` recipe, validated. Knows values; not YAML, models or tensors."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import (
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from layerswap_method.algorithm.coefficients import Input, source_terms
from layerswap_method.algorithm.layer_lists import parse_layers
from layerswap_method.algorithm.plan import LayerPlan, Source, tensor_source
from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.frozen import Described
from layerswap_method.layer_swap.delta_share import BLEND, THRESHOLD, DeltaUnit
from layerswap_method.layer_swap.placements import Placement, build_plan

Count = Annotated[StrictInt, Field(ge=0)]
Weight = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[StrictFloat, Field(ge=0, le=1)]

_COUNTS = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")


class LayerSwapSpec(Described):
    """What stands under a recipe's top-level ``parameters:``; defaults are the paper's.

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
    `layerswap_method.layer_swap.magnitude`."""

    placement: Placement = "outer"
    """Where the swapped layers sit; see `placements.build_plan`. `soup`: nowhere, every layer is
    averaged.   `delta_share`: see `layerswap_method.layer_swap.delta_share`."""

    language_layers: StrictStr | None = Field(default=None, examples=["0-4,30,31"])
    """For `placement: layers`: the swapped layers as a string such as "0-4,30,31"."""

    seed: StrictInt = 0
    """For `placement: random`: seed of the draw."""

    delta_unit: DeltaUnit = "layer"
    """For `placement: delta_share`: what goes to one expert as a whole. With `module`, in-layer
    norms are the language expert's, as published."""

    delta_threshold: Weight = THRESHOLD
    """For `placement: delta_share`: tau, the difference of shares up to which a unit is blended."""

    delta_dominance: Weight | None = Field(default=None, examples=[0.15])
    """For `placement: delta_share`, in place of `delta_threshold`: a unit comes from the expert
    whose share is larger than the other's by more than this fraction of it, else from the base
    (AraSwap asks for 0.15)."""

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
    """The part of a layer that the plan moves; everything else in the layer stays with the task
    expert (module-level swapping, arXiv 2601.22620)."""

    @model_validator(mode="after")
    def _check_combinations(self) -> LayerSwapSpec:
        if self.task_weight == 0 and self.language_weight == 0:
            raise ValueError("task_weight and language_weight are both 0: nothing to average")
        if sum(self.side_weights) == 0:
            raise ValueError(
                f"delta_blend is {self.delta_blend} and the weight of the other expert 0: nothing "
                "to average"
            )
        if self.placement == "layers":
            if self.language_layers is None:
                raise ValueError("placement: layers needs language_layers, such as '0-4,30,31'")
            parse_layers(self.language_layers)
            self._refuse(_COUNTS[:2], "language_layers names the layers: drop one of the two")
        elif self.language_layers is not None:
            raise ValueError(
                f"language_layers has no effect with placement: {self.placement}; "
                "write placement: layers"
            )
        if self.placement == "soup":
            self._refuse(_COUNTS, "every layer is averaged: drop it")
        if self.placement == "delta_share":
            self._refuse(_COUNTS, "the experts' changes decide: drop it")
        else:
            self._refuse(
                ("delta_unit", "delta_threshold", "delta_dominance", "delta_blend"),
                "write placement: delta_share",
            )
        if self.delta_dominance is not None and "delta_threshold" in self.model_fields_set:
            raise ValueError(
                "delta_threshold and delta_dominance are two rules for the same choice: drop one"
            )
        if self.placement in ("soup", "delta_share") and self.swap_modules != "all":
            raise ValueError(
                f"swap_modules: {self.swap_modules} has no effect with placement: "
                f"{self.placement}; drop it"
                + (" (delta_unit: module)" if self.placement == "delta_share" else "")
            )
        return self

    def _refuse(self, names: tuple[str, ...], advice: str) -> None:
        """Raise for parameters that were written and have no effect with this placement."""
        idle = [name for name in names if name in self.model_fields_set]
        if idle:
            verb = "has" if len(idle) == 1 else "have"
            raise ValueError(
                f"{' and '.join(sorted(idle))} {verb} no effect with placement: {self.placement}; "
                f"{advice}"
            )

    @property
    def side_weights(self) -> tuple[float, float]:
        """The weights of (task, language) in every average of the two."""
        if self.placement != "delta_share":
            return self.task_weight, self.language_weight
        alpha = Decimal(repr(self.delta_blend))  # 1 - 0.9 is 0.1, which floats would miss
        sides = (
            alpha * Decimal(repr(self.task_weight)),
            (1 - alpha) * Decimal(repr(self.language_weight)),
        )
        return float(sides[0]), float(sides[1])

    @property
    def needs_deltas(self) -> bool:
        """Whether the experts' changes from the base must be measured before a merge."""
        return self.weighting == "magnitude" or self.placement == "delta_share"

    def plan(self, num_layers: int) -> LayerPlan:
        """Return the layer plan for a model of `num_layers` layers.

        Raises:
            ValueError: with the numbers, where the counts do not fit.
        """
        return build_plan(
            num_layers,
            **self.model_dump(include={*_COUNTS, "placement", "language_layers", "seed"}),
        )

    def tensor_source(self, name: str, layer: int | None, plan: LayerPlan) -> Source:
        """Return the source of the tensor `name` in decoder layer `layer` (None: outside).

        Raises:
            ValueError: if `layer` is not in the plan.
        """
        return tensor_source(
            name,
            layer,
            plan,
            **self.model_dump(include={"non_layer", "layer_norms", "swap_modules"}),
        )

    def vocabulary_givers(self, inputs: Sequence[Input]) -> tuple[int, ...]:
        """Return which of the inputs give embeddings and head: positions, one or more.

        Raises:
            ValueError: as `source_terms`.
        """
        terms = source_terms("embeddings", self.non_layer, inputs, self.side_weights)
        both = zip(terms.inputs, terms.coefficients, strict=True)
        return tuple(i for i, coefficient in both if coefficient != 0)

    def named_source(self, name: str, plan: LayerPlan) -> Source:
        """Return `tensor_source` with the layer read off the tensor's name."""
        return self.tensor_source(name, decoder_layer(name), plan)


NAME = "layer_swap"
"""What a recipe writes as ``merge_method``."""
