"""The merge method `layer_swap`: all that `merge_state_dicts` and a plain `MergePlanner` need."""

from __future__ import annotations

from typing import Literal

import torch
from mergekit.merge_methods.base import PerInput, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.average import Input, weighted_average, weighted_inputs
from layerswap_method.plan import LayerPlan, Role, Source, build_plan, tensor_source
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
    placement: Literal[
        "outer", "middle", "random", "alternating", "layers", "soup", "delta_share"
    ] = "outer",
    language_layers: str | None = None,
    seed: int = 0,
    non_layer: Source = "average",
    layer_norms: Literal["block", "average"] = "block",
    swap_modules: Literal["all", "attention", "mlp"] = "all",
    plan: str | None = None,
    num_layers: int | None = None,
) -> torch.Tensor:
    """Return one output tensor, its layer read off its name (arXiv 2410.01335, Algorithm 1).

    Args:
        group: tensors of one shape, any floating dtype; at most one is the base's.
        role: `task`, `language` or None (the base) of each input.
        weight: weight of each input within its role; 0 or more.
        bottom_layers: b, layers of the language expert at the embedding side.
        top_layers: u, layers of the language expert at the output side.
        bottom_transition: t_b, averaged layers on the output side of each swapped run.
        top_transition: t_u, averaged layers on the input side of each swapped run.
        task_weight: weight of the task experts in every average of both.
        language_weight: weight of the language experts in every average of both.
        weighting: `uniform`; `magnitude` is measured before a merge of whole checkpoints.
        placement: see `layerswap_method.plan.build_plan`; `delta_share` is measured as well.
        language_layers: with `layers` the swapped layers, such as ``"0-4,30,31"``.
        seed: with `random`, seed of the draw.
        non_layer: source of everything outside the decoder's layers.
        layer_norms: `block`, norms go with their layer, or `average`.
        swap_modules: the part of a layer that moves; the rest is the task expert's.
        plan: the source of every layer as one string, in place of counts and placement; see
            `layerswap_method.plan.LayerPlan.from_text`.
        num_layers: decoder layers of the model; None asks the first input's config.

    Returns:
        The source's own tensor (an alias, bit-identical) where one model gives it, else the
        weighted average, rounded once; see `weighted_average`.

    Raises:
        ValueError: for numbers that do not fit, an input that is missing, a tensor without a name
            or an unknown depth.
    """
    name = group.metadata.name
    if name is None:
        raise ValueError("layer_swap needs the tensor's name to know its layer; none was given")
    if weighting != "uniform":
        raise ValueError(
            f"weighting: {weighting} depends on what the experts changed, which is measured before "
            "a merge of whole checkpoints; for single tensors write uniform and weights"
        )
    if (language_layers is None) != (placement != "layers"):
        raise ValueError("placement: layers and language_layers, such as '0-4,30,31', go together")
    layer = decoder_layer(name)
    layer_plan = LayerPlan(())
    if plan is not None:
        layer_plan = LayerPlan.from_text(plan)
    elif layer is not None:
        layer_plan = build_plan(
            _depth(group) if num_layers is None else num_layers,
            bottom_layers=bottom_layers,
            top_layers=top_layers,
            bottom_transition=bottom_transition,
            top_transition=top_transition,
            placement=placement,
            language_layers=language_layers,
            seed=seed,
        )
    source = tensor_source(
        name,
        layer,
        layer_plan,
        non_layer=non_layer,
        layer_norms=layer_norms,
        swap_modules=swap_modules,
    )
    inputs = [Input(role[entry.id], weight[entry.id], entry.is_base) for entry in group.entries]
    made_of = weighted_inputs(name, source, inputs, (task_weight, language_weight))
    tensors = [group.entries[i].tensor for i in made_of.inputs]
    return weighted_average(tensors, made_of.coefficients)


def _depth(group: TensorGroup) -> int:
    """Return the decoder layers that the first input's config states."""
    first = group.entries[0].id
    try:
        return int(first.config().get_text_config().num_hidden_layers)
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{group.metadata.name}: {first!r} has no config that says how many layers the model "
            "has; give num_layers"
        ) from error
