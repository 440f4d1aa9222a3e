"""What a `delta_revert` merge says of itself: a record, and log, plan file and card made of it.

Knows specs and counts; not files or tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from layerswap_method.algorithm.layer_lists import format_layers
from layerswap_method.algorithm.tensor_names import decoder_layer, layer_part
from layerswap_method.delta_revert.recipe import RevertDocument
from layerswap_method.delta_revert.spec import NAME, RevertSpec
from layerswap_method.output import Outcome, record_head

if TYPE_CHECKING:
    from layerswap_method.delta_revert.rows import Kept

REVERT_MEASURED = ("base_model", "threshold", "kept")
"""What of it a study's records repeat."""


def plan_record(
    recipe: RevertDocument, layers: frozenset[int], num_layers: int, threshold: float | None
) -> dict[str, Any]:
    """Return what `delta_revert_plan.json` holds, but for what the merge kept."""
    return {
        **record_head(NAME),
        "expert": str(recipe.expert),
        "base_model": str(recipe.base_model),
        "num_layers": num_layers,
        "parameters": recipe.parameters.model_dump(),
        "threshold": threshold,
        "reverted_layers": sorted(layers),
    }


def log_lines(spec: RevertSpec, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is to be reverted."""
    yield f"expert: {record['expert']}; reverts to: {record['base_model']}"
    if record["threshold"] is not None:
        why = "" if spec.keep_fraction is None else f" (keep_fraction {spec.keep_fraction:g})"
        yield f"rows with a mean absolute change below {record['threshold']:.6g} go back{why}"
    layers = record["reverted_layers"]
    shown = f"{format_layers(layers)} of 0-{record['num_layers'] - 1}" if layers else "none"
    yield f"layers that go back whole: {shown}; modules: {', '.join(spec.modules()) or 'none'}"


def outcome(spec: RevertSpec, record: Mapping[str, Any], tally: Mapping[str, Kept]) -> Outcome:
    """Return what the merge kept, for log, plan file and model card.

    Args:
        spec: the recipe's parameters.
        record: what `plan_record` returned.
        tally: tensor name -> what was kept of it.
    """
    from layerswap_method.delta_revert.rows import NOTHING, summarise

    total = sum(tally.values(), NOTHING)
    by_layer, by_module = summarise(tally, _layer_of), summarise(tally, _module_of)
    lines = ["### What was reverted", ""]
    if record["threshold"] is not None:
        lines.append(
            "- every row (one input feature) whose mean absolute change is below "
            f"{record['threshold']:.6g}"
        )
    if record["reverted_layers"]:
        lines.append(f"- layers {format_layers(record['reverted_layers'])}")
    if modules := spec.modules():
        lines.append(f"- modules: {', '.join(modules)}")
    lines += ["", f"{total.describe()}.", ""]
    lines += ["| | rows kept | weights kept |", "|---|---|---|"]
    lines += [
        f"| {name} | {kept.kept_rows} of {kept.rows} | {kept.kept_weights} of {kept.weights} |"
        for name, kept in by_module.items()
    ]
    return Outcome(
        {
            **record,
            "kept": total.record(),
            "kept_by_layer": {name: kept.record() for name, kept in by_layer.items()},
            "kept_by_module": {name: kept.record() for name, kept in by_module.items()},
            "kept_by_tensor": {name: kept.record() for name, kept in tally.items()},
        },
        lines=(f"kept: {total.describe()}",),
        card="\n".join(lines),
    )


def _layer_of(name: str) -> str:
    layer = decoder_layer(name)
    return "non_layer" if layer is None else str(layer)


def _module_of(name: str) -> str:
    return "non_layer" if _layer_of(name) == "non_layer" else layer_part(name)
