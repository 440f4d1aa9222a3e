"""The merge method `layer_swap` in mergekit's own style: one output tensor from the experts'.

Knows tensors, roles and layer numbers. It is all that `mergekit.merge_methods.merge_state_dicts`
and a plain `MergePlanner` need. What must be measured first, and the placements that only this
project has, are planned before a merge (`planner`), which then calls `combine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from mergekit.merge_methods.base import PerInput, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.algorithm.average import weighted_average
from layerswap_method.algorithm.coefficients import Input, source_terms
from layerswap_method.algorithm.plan import LayerPlan, Role, Source, swap_plan, tensor_source
from layerswap_method.algorithm.tensor_names import decoder_layer


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
    weighting: str = "uniform",
    placement: str = "outer",
    language_layers: str | None = None,
    non_layer: Source = "average",
    layer_norms: Literal["block", "average"] = "block",
    swap_modules: Literal["all", "attention", "mlp"] = "all",
    num_layers: int | None = None,
) -> torch.Tensor:
    """Return one output tensor, its layer read off its name (arXiv 2410.01335, Algorithm 1).

    Args:
        group: tensors of one shape, any floating dtype; at most one is the base's.
        role: `task`, `language` or None (the base) of each input.
        weight: of each input within its role; 0 or more.
        bottom_layers: b, layers of the language expert at the embedding side.
        top_layers: u, layers of the language expert at the output side.
        bottom_transition: t_b, averaged layers on the output side of each swapped run.
        top_transition: t_u, averaged layers on the input side of each swapped run.
        task_weight: of the task experts in every average of both.
        language_weight: of the language experts in every average of both.
        weighting: `uniform`.
        placement: `outer`, the paper's, or `layers`.
        language_layers: with `layers` the swapped layers, such as ``"0-4,30,31"``.
        non_layer: source of everything outside the decoder's layers.
        layer_norms: `block`, norms go with their layer, or `average`.
        swap_modules: the part of a layer that moves; the rest is the task expert's.
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
    _check_alone(weighting, placement, language_layers)
    layer = decoder_layer(name)
    plan = LayerPlan(())
    if layer is not None:
        plan = swap_plan(
            _depth(group) if num_layers is None else num_layers,
            bottom_layers=bottom_layers,
            top_layers=top_layers,
            bottom_transition=bottom_transition,
            top_transition=top_transition,
            language_layers=language_layers,
        )
    source = tensor_source(
        name,
        layer,
        plan,
        non_layer=non_layer,
        layer_norms=layer_norms,
        swap_modules=swap_modules,
    )
    inputs = [Input(role[e.id], weight[e.id], e.is_base) for e in group.entries]
    return combine(group, source, inputs, (task_weight, language_weight))


def combine(
    group: TensorGroup,
    source: Source,
    inputs: Sequence[Input],
    side_weights: tuple[float, float],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the tensor of a group whose source is known.

    Args:
        group: tensors of one shape.
        source: where the tensor comes from.
        inputs: one an entry of `group`, in its order.
        side_weights: of (task, language) in an average of the two.
        out_dtype: dtype to which an average is rounded; None keeps that of the inputs.

    Raises:
        ValueError: as `source_terms`.
    """
    terms = source_terms(group.metadata.name or "tensor", source, inputs, side_weights)
    tensors = [group.entries[i].tensor for i in terms.inputs]
    return weighted_average(tensors, terms.coefficients, terms.divisor, out_dtype)


def _check_alone(weighting: str, placement: str, language_layers: str | None) -> None:
    """Refuse what one tensor alone does not show, or what contradicts itself."""
    if weighting != "uniform":
        raise ValueError(
            f"weighting: {weighting} depends on what the experts changed, which is measured before "
            "a merge of whole checkpoints; for single tensors write uniform"
        )
    if placement not in ("outer", "layers"):
        raise ValueError(
            f"placement: {placement} is computed before a merge of whole checkpoints; for single "
            "tensors write outer, or layers with language_layers"
        )
    if (language_layers is None) != (placement == "outer"):
        raise ValueError(
            "placement: layers and language_layers, such as '0-4,30,31', go together; write both "
            "or neither"
        )


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
