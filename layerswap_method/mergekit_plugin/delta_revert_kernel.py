"""The merge method `delta_revert`: one output tensor from an expert and its base.

Knows the rule of one tensor; the planner (`delta_revert_planner`) decides it, and drops
the side that is not needed before it is read. Source: arXiv 2410.01335, section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerswap_method.delta_revert.spec import NAME, RevertSpec, Rule
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.api import build_group_method, dtype_from_name

if TYPE_CHECKING:
    import torch

    from layerswap_method.delta_revert.rows import Tally


RULE_PARAMETER = "delta_revert_rule"
"""This and the next two are set by the planner on each tensor's task, never by a recipe."""

MODEL_TYPE_PARAMETER = "delta_revert_model_type"
DTYPE_PARAMETER = "delta_revert_dtype"

_tally: Tally | None = None


def build_method() -> Any:
    """Return the mergekit merge method, to be given to `registry.register`."""
    fields = RevertSpec.model_fields.items()
    return build_group_method(
        name=NAME,
        pretty_name="Delta Revert",
        reference_url="https://arxiv.org/abs/2410.01335",
        implementation=merge_group,
        shared={
            **{name: (field.annotation, field.default) for name, field in fields},
            RULE_PARAMETER: (Rule | None, None),
            MODEL_TYPE_PARAMETER: (str | None, None),
            DTYPE_PARAMETER: (str | None, None),
        },
        per_input={},
    )


def start_tally() -> Tally:
    """Return a new count that the tensors made from now on are added to.

    One merge at a time: mergekit's own caches (`LoaderCache`) allow no more in a process either.
    """
    global _tally
    from layerswap_method.delta_revert.rows import Tally

    _tally = Tally()
    return _tally


def merge_group(group: Any, **parameters: Any) -> torch.Tensor:
    """Return one output tensor (mergekit's kernel interface).

    Args:
        group: mergekit's `TensorGroup`: the expert's tensor, the base's, or both.
        **parameters: the recipe's top-level parameters, and what the planner sets.

    Returns:
        A side's own tensor, or rows of both; see `revert.revert_rows`.

    Raises:
        InputError: if a side that is needed is missing, a change is not finite, or the planner was
            not extended.
    """
    from layerswap_method.delta_revert.rows import Kept, revert_rows
    from layerswap_method.deltas.rows import input_axis, row_layout

    name = group.metadata.name or "tensor"
    rule: Rule | None = parameters[RULE_PARAMETER]
    if rule is None:
        raise InputError("delta_revert works through mergekit's planner only; use mergekit-yaml")
    sides = {"base" if entry.is_base else "expert": entry.tensor for entry in group.entries}
    for side in ("expert", "base") if rule == "rows" else (rule,):
        if side not in sides:
            raise InputError(f"{name}: the {side} does not hold this tensor")
    shape = tuple(next(iter(sides.values())).shape)
    axis = input_axis(name, len(shape), parameters[MODEL_TYPE_PARAMETER] or "")
    if rule == "rows":
        threshold = parameters["threshold"]
        try:
            result, kept = revert_rows(sides["expert"], sides["base"], threshold, axis)
        except ValueError as error:
            raise InputError(f"{name}: {error}; the expert or the base is damaged") from error
        dtype = dtype_from_name(parameters[DTYPE_PARAMETER])
        result = result if dtype is None else result.to(dtype)
    else:
        result = sides[rule]
        rows = row_layout(shape, axis).features
        kept = Kept.whole(rows, result.numel(), stays=rule == "expert")
    if _tally is not None:
        _tally.tensors[name] = kept
    return result
