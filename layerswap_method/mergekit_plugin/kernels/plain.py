"""The kernels, as `merge_state_dicts` and a plain `MergePlanner` call them."""

from __future__ import annotations

from typing import Literal

import torch
from mergekit.merge_methods.base import InputContract, PerInput, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.average import Input, weighted_average, weighted_inputs
from layerswap_method.deltas.features import feature_layout, input_axis, spread_features
from layerswap_method.methods.delta_revert import RevertSpec
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

    The parameters are those of `LayerSwapSpec`, except what is measured on whole checkpoints.
    `role` and `weight` are of each input, None for the base. `plan` is the source of every layer
    as one string (`LayerPlan.from_text`), in place of counts and placement. `num_layers` None asks
    the first input's config. Where one model gives the tensor it is returned itself (an alias),
    else the weighted average, rounded once.
    """
    given = {key: value for key, value in locals().items() if key in LayerSwapSpec.model_fields}
    spec, name = LayerSwapSpec.model_construct(**given), group.metadata.name
    if name is None:
        raise ValueError("layer_swap needs the tensor's name to know its layer; none was given")
    if weighting != "uniform":
        raise ValueError("weighting: magnitude is measured on whole checkpoints; write weights")
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


@merge_method(  # type: ignore[untyped-decorator]
    name="delta_revert",
    pretty_name="Delta Revert",
    reference_url="https://arxiv.org/abs/2410.01335",
    contract=InputContract(max_inputs=2),
)
def delta_revert(
    group: TensorGroup,
    threshold: float | None = None,
    keep_fraction: float | None = None,
    revert_layers: str | None = None,
    bottom_layers: int = 0,
    top_layers: int = 0,
    revert_modules: str | None = None,
    num_layers: int | None = None,
    model_type: str | None = None,
) -> torch.Tensor:
    """Return one output tensor, its layer read off its name.

    The parameters are those of `RevertSpec`, except `keep_fraction`. `num_layers` and `model_type`
    (which weights are stored inputs x outputs) None ask the base's config.
    """
    given = {key: value for key, value in locals().items() if key in RevertSpec.model_fields}
    spec, name, base = RevertSpec(**given), group.metadata.name, group.base
    if name is None:
        raise ValueError("delta_revert needs the tensor's name; none was given")
    if base is None or len(group.entries) != 2:
        raise ValueError(f"{name}: delta_revert takes one expert and its base; name the base")
    if keep_fraction is not None:
        raise ValueError("keep_fraction is measured on whole checkpoints; here write threshold")
    layer, layers = decoder_layer(name), frozenset[int]()
    if layer is not None and (bottom_layers or top_layers or revert_layers):
        layers = spec.layers(num_layers or depth_of(base.id, name))
    rule = spec.rule(name, layer, layers)
    other: torch.Tensor = base.tensor
    expert: torch.Tensor = next(entry.tensor for entry in group.entries if not entry.is_base)
    if rule != "features":
        return other if rule == "base" else expert
    stored = model_type or str(getattr(_config(base.id), "model_type", ""))
    axis = input_axis(name, expert.ndim, stored)
    layout = feature_layout(expert.shape, axis)
    delta = (expert.float() - other.float()).abs()
    delta = delta.reshape(layout.matrices, layout.rows, layout.columns)
    mav = delta.mean(1 if layout.across else 2).flatten()
    if not bool(mav.isfinite().all()):
        raise ValueError(f"{name}: a feature's mean change is not finite; a model is damaged")
    stays = spread_features(~(mav.double() < (threshold or 0.0)), expert.shape, axis)
    return torch.where(stays, expert, other)


def depth_of(model: object, tensor: str) -> int:
    """Return the decoder layers that the config of an input's model states."""
    depth = getattr(_config(model), "num_hidden_layers", None)
    if depth is None:
        raise ValueError(f"{tensor}: {model!r} has no config that says the depth; give num_layers")
    return int(depth)


def _config(model: object) -> object:
    """Return the text config of an input's model; None where its id names none."""
    try:
        return model.config().get_text_config()  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):
        return None
