"""The merge method `delta_revert` in mergekit's own style: one tensor from an expert and its base.

Knows the rule of one tensor. `keep_fraction` is measured before a merge (`delta_revert_merge`).
Source: arXiv 2410.01335, section 3.3.
"""

from __future__ import annotations

import torch
from mergekit.merge_methods.base import InputContract, TensorGroup
from mergekit.merge_methods.easy_define import merge_method

from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.delta_revert.rows import Kept, revert_rows
from layerswap_method.delta_revert.spec import RevertSpec, Rule
from layerswap_method.deltas.rows import input_axis, row_layout


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

    Args:
        group: the expert's tensor and the base's, of one shape.
        threshold: rows whose mean absolute change is below this go back.
        keep_fraction: refused here; it goes by all rows of the model.
        revert_layers: layers that go back whole, such as ``"0-4,30,31"``.
        bottom_layers: layers at the embedding side that go back whole.
        top_layers: layers at the output side that go back whole.
        revert_modules: modules that go back in every layer, such as ``"attention,mlp"``.
        num_layers: decoder layers of the model; None asks the base's config where it is needed.
        model_type: of the transformers config; None asks the base's config. It says which weights
            are stored inputs x outputs.

    Returns:
        A side's own tensor, or rows of both; see `layerswap_method.delta_revert.rows`.

    Raises:
        ValueError: for parameters that do not fit, a missing side or name, an unknown depth, or a
            change that is not finite.
    """
    name, base = group.metadata.name, group.base
    if name is None:
        raise ValueError("delta_revert needs the tensor's name; none was given")
    if base is None or len(group.entries) != 2:
        raise ValueError(f"{name}: delta_revert takes one expert and its base; name the base")
    given = {
        "threshold": threshold,
        "keep_fraction": keep_fraction,
        "revert_layers": revert_layers,
        "bottom_layers": bottom_layers,
        "top_layers": top_layers,
        "revert_modules": revert_modules,
    }
    spec = RevertSpec(**{key: value for key, value in given.items() if value is not None})
    if spec.keep_fraction is not None:
        raise ValueError(
            "keep_fraction needs all rows of the model, which are measured before a merge of "
            "whole checkpoints; for single tensors write threshold"
        )
    config = _config(base.id)
    layer, layers = decoder_layer(name), frozenset[int]()
    if layer is not None and (bottom_layers or top_layers or revert_layers):
        depth = num_layers or getattr(config, "num_hidden_layers", None)
        if depth is None:
            raise ValueError(
                f"{name}: {base.id!r} has no config that says how many layers the model has; give "
                "num_layers"
            )
        layers = spec.layers(int(depth))
    rule = spec.rule(name, layer, layers)
    kind = model_type or str(getattr(config, "model_type", ""))
    return revert(group, rule, spec.threshold, kind)[0]


def revert(
    group: TensorGroup,
    rule: Rule,
    threshold: float | None,
    model_type: str,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, Kept]:
    """Return the tensor of a group whose rule is known, and what was kept of it.

    Args:
        group: the expert's tensor, the base's, or both.
        rule: where the tensor comes from.
        threshold: for rows, the mean absolute change below which a row goes back.
        model_type: of the transformers config.
        out_dtype: dtype to which rows of both are rounded; None keeps that of the inputs.

    Raises:
        ValueError: if a side that is needed is missing, or a change is not finite.
    """
    name = group.metadata.name or "tensor"
    sides = {"base" if entry.is_base else "expert": entry.tensor for entry in group.entries}
    for side in ("expert", "base") if rule == "rows" else (rule,):
        if side not in sides:
            raise ValueError(f"{name}: the {side} does not have this tensor")
    shape = tuple(next(iter(sides.values())).shape)
    axis = input_axis(name, len(shape), model_type)
    if rule != "rows":
        rows = row_layout(shape, axis).features
        return sides[rule], Kept.whole(rows, sides[rule].numel(), stays=rule == "expert")
    try:
        result, kept = revert_rows(sides["expert"], sides["base"], threshold or 0.0, axis)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; the expert or the base is damaged") from error
    return (result if out_dtype is None else result.to(out_dtype)), kept


def _config(model: object) -> object:
    """Return the text config of an input's model; None where its id names none."""
    try:
        return model.config().get_text_config()  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):
        return None
