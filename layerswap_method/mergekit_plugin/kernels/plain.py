"""The kernels, as `merge_state_dicts` and a plain `MergePlanner` call them.

The parameters of a kernel are the fields of its recipe, and values that one tensor cannot tell.
None stands for a line that a recipe does not have, so both refuse the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Optional, TypeVar

import torch
from mergekit.io.tasks import LoaderCache
from mergekit.merge_methods.base import (
    FunctionalGroupMergeMethod,
    InputContract,
    MergeMethodSpec,
    ParameterScope,
    ParameterSpec,
    TensorGroup,
)
from pydantic import BaseModel, PositiveInt, StrictFloat, StrictStr

from layerswap_method.average import Input, weighted_average, weighted_inputs
from layerswap_method.deltas.features import feature_layout, input_axis, spread_features
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.methods.layer_swap import ExpertParameters, LayerSwapSpec
from layerswap_method.tensor_names import Decoder, find_decoder

Values = TypeVar("Values", bound=BaseModel)


class SwapParameters(LayerSwapSpec):
    """The parameters of `layer_swap` for all inputs."""

    layer_sources: StrictStr | None = None
    """The source of every layer (`LayerPlan.from_text`), in place of counts and placement."""

    num_layers: PositiveInt | None = None
    """The depth of the models; by default that of the first input's config."""

    decoder: StrictStr | None = None
    """The beginning of the names of the text decoder's layers (`tensor_names.Decoder.prefix`); by
    default what the names of the first input's tensors say."""


class SwapInputParameters(ExpertParameters):
    """The parameters of `layer_swap` for one input."""

    scale: StrictFloat | None = None
    """The measured scale for `weighting: magnitude` (`average.Input`)."""


class RevertParameters(RevertSpec):
    """The parameters of `delta_revert`."""

    num_layers: PositiveInt | None = None
    """The depth of the models; by default that of the base's config."""

    decoder: StrictStr | None = None
    """The beginning of the names of the text decoder's layers; by default as the base's say."""

    model_type: StrictStr | None = None
    """It says which weights are stored inputs x outputs; by default that of the base's config."""


def _layer_swap(group: TensorGroup, /, **parameters: Any) -> torch.Tensor:
    """Return one output tensor, its layer read off its name (arXiv 2410.01335, Algorithm 1).

    Where one model gives the tensor it is returned itself (an alias), else the weighted average,
    rounded once.
    """
    name, spec = _name(group), _values(SwapParameters, parameters)
    inputs = []
    for entry in group.entries:
        expert = _values(SwapInputParameters, parameters, entry.id)
        if spec.weighting == "magnitude" and expert.role and expert.scale is None:
            raise ValueError("weighting: magnitude is measured on whole checkpoints; write weights")
        scale = expert.scale or 1.0
        inputs.append(Input(expert.role, expert.weight, entry.is_base, scale))
    plan = LayerPlan.from_text(spec.layer_sources) if spec.layer_sources else LayerPlan(())
    first, depth = group.entries[0].id, plan.num_layers or spec.num_layers
    layer = decoder_in(first, name, spec.decoder, depth).layer(name)
    if layer is not None and not plan.num_layers:
        plan = spec.plan(spec.num_layers or depth_of(first, name))
    source = spec.tensor_source(name, layer, plan)
    mean = weighted_inputs(name, source, inputs, spec.average_weights)
    tensors = [group.entries[position].tensor for position in mean.inputs]
    return weighted_average(tensors, mean.coefficients)


def _delta_revert(group: TensorGroup, /, **parameters: Any) -> torch.Tensor:
    """Return one output tensor of `delta_revert`, its layer read off its name."""
    name, spec, base = _name(group), _values(RevertParameters, parameters), group.base
    if base is None or len(group.entries) != 2:
        raise ValueError(f"{name}: delta_revert takes one expert and its base; name the base")
    if spec.keep_fraction is not None:
        raise ValueError("keep_fraction is measured on whole checkpoints; here write threshold")
    layer = decoder_in(base.id, name, spec.decoder, spec.num_layers).layer(name)
    layers = frozenset[int]()
    if layer is not None and (spec.bottom_layers or spec.top_layers or spec.revert_layers):
        layers = spec.layers(spec.num_layers or depth_of(base.id, name))
    rule = spec.rule(name, layer, layers)
    base_tensor: torch.Tensor = base.tensor
    expert: torch.Tensor = next(entry.tensor for entry in group.entries if not entry.is_base)
    if rule != "features":
        return base_tensor if rule == "base" else expert
    model_type = spec.model_type or str(getattr(_config(base.id), "model_type", ""))
    axis = input_axis(name, expert.ndim, model_type)
    layout = feature_layout(expert.shape, axis)
    delta = (expert.float() - base_tensor.float()).abs()
    delta = delta.reshape(layout.matrices, layout.rows, layout.columns)
    mav = delta.mean(1 if layout.across else 2).flatten()
    if not bool(mav.isfinite().all()):
        raise ValueError(f"{name}: a feature's mean change is not finite; a model is damaged")
    is_kept = ~(mav.double() < (spec.threshold or 0.0))
    return torch.where(spread_features(is_kept, expert.shape, axis), expert, base_tensor)


def _parameters(model: type[BaseModel], scope: ParameterScope) -> tuple[ParameterSpec, ...]:
    """Return mergekit's parameters for the fields of a model."""
    return tuple(
        ParameterSpec(name, Optional[field.rebuild_annotation()], scope, None, field.description)  # noqa: UP045 - of a value
        for name, field in model.model_fields.items()
    )


def _values(model: type[Values], parameters: Mapping[str, Any], input_id: object = None) -> Values:
    """Return a kernel's parameters, those of one input or (None) those for all."""
    values = {}
    for name in model.model_fields:
        value = parameters[name] if input_id is None else parameters[name][input_id]
        if value is not None:
            values[name] = value
    return model(**values)


def _name(group: TensorGroup) -> str:
    name = group.metadata.name
    if name is None:
        raise ValueError("a tensor's layer is read off its name; none was given")
    return str(name)


def decoder_in(model: object, name: str, prefix: str | None, num_layers: int | None) -> Decoder:
    """Return the text decoder of an input's model; what is None is read from the model's files."""
    if num_layers is None:
        num_layers = getattr(_config(model), "num_hidden_layers", None)
    if prefix is not None:
        return Decoder(prefix, num_layers)
    names = _names(model)
    decoder = find_decoder(names or (name,), num_layers)
    if decoder.doubt:
        raise ValueError(f"{model!r} has {decoder.doubt}; give decoder")
    # One name does not say whether its layer predicts further tokens, or the depth is wrong.
    return decoder._replace(num_layers=num_layers if names else None)


def depth_of(model: object, tensor: str) -> int:
    """Return the decoder layers that the config of an input's model states."""
    depth = getattr(_config(model), "num_hidden_layers", None)
    if depth is None:
        raise ValueError(f"{tensor}: {model!r} has no config that says the depth; give num_layers")
    return int(depth)


def _names(model: object) -> Collection[str]:
    """Return the names of all tensors of an input's model; () where its id names none.

    They are those that mergekit reads, which opens a model once, and anew for the next merge.
    """
    try:
        names: Collection[str] = LoaderCache().get(model).index.tensor_paths
        return names
    except (AttributeError, OSError, TypeError, ValueError, RuntimeError):
        return ()


def _config(model: object) -> object:
    """Return the text config of an input's model; None where its id names none."""
    try:
        return model.config().get_text_config()  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def _method(
    name: str,
    pretty_name: str,
    kernel: Callable[..., torch.Tensor],
    parameters: tuple[ParameterSpec, ...],
    contract: InputContract,
) -> FunctionalGroupMergeMethod:
    spec = MergeMethodSpec(
        name=name,
        pretty_name=pretty_name,
        reference_url="https://arxiv.org/abs/2410.01335",
        parameters=parameters,
        contract=contract,
    )
    return FunctionalGroupMergeMethod(spec, kernel)


layer_swap = _method(
    "layer_swap",
    "Layer Swapping",
    _layer_swap,
    _parameters(SwapParameters, ParameterScope.SHARED)
    + _parameters(SwapInputParameters, ParameterScope.INPUT),
    InputContract(),
)

delta_revert = _method(
    "delta_revert",
    "Delta Revert",
    _delta_revert,
    _parameters(RevertParameters, ParameterScope.SHARED),
    InputContract(max_inputs=2),
)
