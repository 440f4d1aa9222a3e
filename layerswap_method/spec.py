"""The parameters of a `layer_swap` recipe, validated. Knows values; not YAML, models or tensors."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from layerswap_method.plan import LayerPlan, Placement, build_plan, parse_layers
from layerswap_method.tensors import layer_part, split_layer

Role = Literal["task", "language"]
"""The part an input model plays."""

ROLES: tuple[str, ...] = get_args(Role)

TensorSource = Literal["task", "language", "average", "base"]
"""Where one tensor comes from."""

Count = Annotated[StrictInt, Field(ge=0)]
Weight = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class LayerSwapSpec(BaseModel):
    """What stands under a recipe's top-level ``parameters:``; defaults are the paper's.

    Source: arXiv 2410.01335, section 4.2 (underlined defaults) and Algorithm 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
    """`uniform` averages by the weights above. `magnitude` (section 4.2 item 5) is refused: it
    needs the delta analysis, which is not part of this version."""

    placement: Placement = "outer"
    """Where the swapped layers sit; see `layerswap_method.plan.build_plan`."""

    language_layers: StrictStr | None = Field(default=None, examples=["0-4,30,31"])
    """For `placement: layers`: the swapped layers as a string such as "0-4,30,31"."""

    seed: StrictInt = 0
    """For `placement: random`: seed of the draw."""

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
        if self.weighting == "magnitude":
            raise ValueError(
                "weighting: magnitude needs the delta analysis, which this version does not have; "
                "use weighting: uniform, with task_weight and language_weight of your own"
            )
        if self.task_weight == 0 and self.language_weight == 0:
            raise ValueError("task_weight and language_weight are both 0: nothing to average")
        if self.placement == "layers":
            if self.language_layers is None:
                raise ValueError("placement: layers needs language_layers, such as '0-4,30,31'")
            parse_layers(self.language_layers)
            idle = {"bottom_layers", "top_layers"} & self.model_fields_set
            if idle:
                raise ValueError(
                    f"{' and '.join(sorted(idle))} have no effect with placement: layers; "
                    "language_layers names the layers: drop one of the two"
                )
        elif self.language_layers is not None:
            raise ValueError(
                f"language_layers has no effect with placement: {self.placement}; "
                "write placement: layers"
            )
        return self

    def plan(self, num_layers: int) -> LayerPlan:
        """Return the layer plan for a model of `num_layers` layers.

        Raises:
            ValueError: with the numbers, where the counts do not fit.
        """
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

    def tensor_source(self, name: str, layer: int | None, plan: LayerPlan) -> TensorSource:
        """Return the source of the tensor `name` in decoder layer `layer` (None: outside).

        Raises:
            ValueError: if `layer` is not in the plan.
        """
        if layer is None:
            return self.non_layer
        if not 0 <= layer < plan.num_layers:
            raise ValueError(f"tensor {name!r}: layer {layer} is not in 0..{plan.num_layers - 1}")
        part = layer_part(name)
        if part == "norm" and self.layer_norms == "average":
            return "average"
        if self.swap_modules not in ("all", part):
            return "task"
        return plan.sources[layer]

    def named_source(self, name: str, plan: LayerPlan) -> TensorSource:
        """Return `tensor_source` with the layer read off the tensor's name."""
        return self.tensor_source(name, split_layer(name)[0], plan)


SHARED_PARAMETERS: tuple[str, ...] = tuple(LayerSwapSpec.model_fields)
"""Names that stand under the top-level ``parameters:``."""

MODEL_PARAMETERS: tuple[str, ...] = ("role", "weight")
"""Names that stand under each model's ``parameters:``."""
