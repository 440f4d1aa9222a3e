"""The merge method `delta_revert`: one tensor from an expert and its base (section 3.3)."""

from __future__ import annotations

import torch
from mergekit.merge_methods.base import InputContract, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.deltas.features import feature_layout, input_axis, spread_features
from layerswap_method.methods.delta_revert import RevertSpec
from layerswap_method.tensor_names import decoder_layer


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

    The parameters are those of `layerswap_method.methods.delta_revert.RevertSpec`, but for
    `keep_fraction`, which goes by all features of the model. `num_layers` and `model_type` (which
    weights are stored inputs x outputs) None ask the base's config.
    """
    given = {key: value for key, value in locals().items() if key in RevertSpec.model_fields}
    name, base = group.metadata.name, group.base
    if name is None:
        raise ValueError("delta_revert needs the tensor's name; none was given")
    if base is None or len(group.entries) != 2:
        raise ValueError(f"{name}: delta_revert takes one expert and its base; name the base")
    if keep_fraction is not None:
        raise ValueError(
            "keep_fraction needs all features of the model, which are measured before a merge of "
            "whole checkpoints; for single tensors write threshold"
        )
    spec = RevertSpec(**given)
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
        raise ValueError(
            f"{tensor}: {model!r} has no config that says how many layers the model has; give "
            "num_layers"
        )
    return int(depth)


def _config(model: object) -> object:
    """Return the text config of an input's model; None where its id names none."""
    try:
        return model.config().get_text_config()  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):
        return None
