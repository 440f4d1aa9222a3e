"""The merge method `layer_swap`: all that `merge_state_dicts` and a plain `MergePlanner` need."""

from __future__ import annotations

from typing import Literal

import torch
from mergekit.merge_methods.base import PerInput, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.average import Input, weighted_average, weighted_inputs
from layerswap_method.mergekit_plugin.kernels.delta_revert import depth_of
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.plan import LayerPlan, Placement, Role, Source
from layerswap_method.tensor_names import decoder_layer


@merge_method(  # type: ignore[untyped-decorator]
    name="layer_swap",
    pretty_name="Layer Swapping",
    reference_url="https://arxiv.org/abs/2410.01335",
)
def layer_swap(
    group: TensorGroup,
    role: PerInput[Role | None] = None,
    weight: PerInput[float] = 1.0,
    bottom_layers: int = 5,
    top_layers: int = 2,
    bottom_transition: int = 0,
    top_transition: int = 0,
    task_weight: float = 1.0,
    language_weight: float = 1.0,
    weighting: Literal["uniform", "magnitude"] = "uniform",
    placement: Placement = "outer",
    language_layers: str | None = None,
    seed: int = 0,
    non_layer: Source = "average",
    layer_norms: Literal["block", "average"] = "block",
    swap_modules: Literal["all", "attention", "mlp"] = "all",
    plan: str | None = None,
    num_layers: int | None = None,
) -> torch.Tensor:
    """Return one output tensor, its layer read off its name (arXiv 2410.01335, Algorithm 1).

    The parameters are those of `layerswap_method.methods.layer_swap.LayerSwapSpec`, but for what is
    measured on whole checkpoints: `weighting: magnitude` and `placement: delta_share` are refused.
    `role` and `weight` are of each input, None for the base. `plan` is the source of every layer
    as one string (`LayerPlan.from_text`), in place of counts and placement. `num_layers` None asks
    the first input's config. Where one model gives the tensor it is returned itself (an alias,
    bit-identical), else the weighted average, rounded once.
    """
    given = {key: value for key, value in locals().items() if key in LayerSwapSpec.model_fields}
    spec, name = LayerSwapSpec.model_construct(**given), group.metadata.name
    if name is None:
        raise ValueError("layer_swap needs the tensor's name to know its layer; none was given")
    if weighting != "uniform":
        raise ValueError(
            f"weighting: {weighting} depends on what the experts changed, which is measured before "
            "a merge of whole checkpoints; for single tensors write uniform and weights"
        )
    if (language_layers is None) != (placement != "layers"):
        raise ValueError("placement: layers and language_layers, such as '0-4,30,31', go together")
    layer, layer_plan = decoder_layer(name), LayerPlan(())
    if plan is not None:
        layer_plan = LayerPlan.from_text(plan)
    elif layer is not None:
        first = group.entries[0].id
        layer_plan = spec.plan(depth_of(first, name) if num_layers is None else num_layers)
    source = spec.tensor_source(name, layer, layer_plan)
    inputs = [Input(role[entry.id], weight[entry.id], entry.is_base) for entry in group.entries]
    made_of = weighted_inputs(name, source, inputs, (task_weight, language_weight))
    tensors = [group.entries[i].tensor for i in made_of.inputs]
    return weighted_average(tensors, made_of.coefficients)
