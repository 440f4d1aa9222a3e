"""The merge method `layer_swap`: one output tensor from the experts' tensors.

Knows roles, weights and the source of one tensor. The planner (`planner`)
normally decides that source and drops the inputs that are not needed before they are read. Where
mergekit's planner could not be extended, the kernel derives layer and layer count itself from
the tensor's name and the first input's config, and every input is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerswap_method.algorithm.coefficients import source_terms
from layerswap_method.algorithm.plan import LayerPlan, Role, TensorSource
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import UNMEASURED
from layerswap_method.layer_swap.spec import NAME, PLAN_PARAMETER, LayerSwapSpec
from layerswap_method.mergekit_plugin.api import build_group_method, dtype_from_name

if TYPE_CHECKING:
    import torch


SOURCE_PARAMETER = "layer_swap_source"
"""Set by the planner on each tensor's task, never by a recipe."""

DTYPE_PARAMETER = "layer_swap_dtype"
"""Set by the planner on averaged tensors: the recipe's `dtype`, to which the average is rounded
once. Never by a recipe."""


def build_method() -> Any:
    """Return the mergekit merge method, to be given to `registry.register`."""
    shared = {
        name: (field.annotation, field.default)
        for name, field in LayerSwapSpec.model_fields.items()
    }
    return build_group_method(
        name=NAME,
        pretty_name="Layer Swapping",
        reference_url="https://arxiv.org/abs/2410.01335",
        implementation=merge_group,
        shared={
            **shared,
            PLAN_PARAMETER: (str | None, None),
            SOURCE_PARAMETER: (TensorSource | None, None),
            DTYPE_PARAMETER: (str | None, None),
        },
        per_input={"role": (Role | None, None), "weight": (float, 1.0)},
    )


def merge_group(
    group: Any, *, role: Mapping[Any, str | None], weight: Mapping[Any, float], **shared: Any
) -> torch.Tensor:
    """Return one output tensor (mergekit's kernel interface).

    Args:
        group: mergekit's `TensorGroup`; tensors of one shape, any floating dtype.
        role: input id -> `task`, `language` or None (the base).
        weight: input id -> weight within its role; 0 or more.
        **shared: the recipe's top-level parameters, and what the planner sets.

    Returns:
        The source's own tensor (bit-identical) where one model gives it, else the weighted
        average, accumulated in float32 and rounded once; see `arithmetic.weighted_average`.

    Raises:
        InputError: if an input that the source needs is missing.
    """
    plan = shared.pop(PLAN_PARAMETER, None)
    source = shared.pop(SOURCE_PARAMETER, None)
    dtype = shared.pop(DTYPE_PARAMETER, None)
    spec = LayerSwapSpec(
        **{
            name: value
            for name, value in shared.items()
            if value != LayerSwapSpec.model_fields[name].default
        }
    )
    if source is None:
        source = _source_from_name(group, spec, plan)
    return _combine(
        group.metadata.name or "tensor",
        source,
        spec,
        tensors=[entry.tensor for entry in group.entries],
        roles=[role[entry.id] for entry in group.entries],
        weights=[weight[entry.id] for entry in group.entries],
        is_base=[entry.is_base for entry in group.entries],
        out_dtype=dtype_from_name(dtype),
    )


def _combine(
    name: str,
    source: TensorSource,
    spec: LayerSwapSpec,
    *,
    tensors: Sequence[torch.Tensor],
    roles: Sequence[str | None],
    weights: Sequence[float],
    is_base: Sequence[bool],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    from layerswap_method.algorithm.average import weighted_average

    terms = source_terms(name, source, spec, roles=roles, weights=weights, is_base=is_base)
    if source == "base":
        return tensors[terms.inputs[0]]
    chosen = [tensors[i] for i in terms.inputs]
    return weighted_average(chosen, terms.coefficients, terms.divisor, out_dtype)


def _source_from_name(group: Any, spec: LayerSwapSpec, plan: str | None) -> TensorSource:
    """Return the source without the planner's help (recipes with `models:` only).

    Args:
        group: mergekit's `TensorGroup`.
        spec: the recipe's parameters.
        plan: a measured plan as text.
    """
    from layerswap_method.algorithm.tensor_names import decoder_layer

    name = group.metadata.name
    if name is None:
        raise InputError("layer_swap needs the tensor's name to know its layer; none was given")
    if spec.weighting == "magnitude":
        raise InputError(f"{name}: {UNMEASURED}")
    layer = decoder_layer(name)
    if layer is None:
        return spec.non_layer
    try:
        config = group.entries[0].id.config()
        num_layers = int(config.get_text_config().num_hidden_layers)
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: layer_swap cannot tell the number of layers of {group.entries[0].id!r}; "
            "use it through mergekit-yaml, mergekit-multi or mergekit.merge.run_merge"
        ) from error
    try:
        found = spec.plan(num_layers) if plan is None else LayerPlan.from_text(plan)
        return spec.tensor_source(name, layer, found)
    except ValueError as error:
        raise InputError(str(error)) from error
