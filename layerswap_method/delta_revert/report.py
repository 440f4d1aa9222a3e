"""What a `delta_revert` merge says of itself: log lines, plan file, card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from layerswap_method import __version__
from layerswap_method.algorithm.layer_lists import format_layers
from layerswap_method.algorithm.tensor_names import decoder_layer, layer_part
from layerswap_method.delta_revert.recipe import RevertRecipe
from layerswap_method.delta_revert.spec import NAME
from layerswap_method.output import Outcome

if TYPE_CHECKING:
    from layerswap_method.delta_revert.rows import Kept, Tally


REVERT_MEASURED = ("base_model", "threshold", "kept")
"""What of it a study's records repeat."""


PLAN_SCHEMA_VERSION = 1


def _announcement(
    recipe: RevertRecipe, layers: frozenset[int], num_layers: int, threshold: float | None
) -> Iterator[str]:
    """Yield what is to be reverted, for the log."""
    yield f"expert: {recipe.expert}; reverts to: {recipe.base_model}"
    spec = recipe.spec
    if threshold is not None:
        why = "" if spec.keep_fraction is None else f" (keep_fraction {spec.keep_fraction:g})"
        yield f"rows with a mean absolute change below {threshold:.6g} go back{why}"
    shown = f"{format_layers(layers)} of 0-{num_layers - 1}" if layers else "none"
    yield f"layers that go back whole: {shown}; modules: {', '.join(spec.modules()) or 'none'}"


def _outcome(
    recipe: RevertRecipe,
    layers: frozenset[int],
    num_layers: int,
    threshold: float | None,
    tally: Tally,
) -> Outcome:
    """Return what the merge kept, for log, plan file and model card."""
    from layerswap_method.delta_revert.rows import summarise

    total = tally.total()
    by_layer = summarise(tally.tensors, {name: _layer_of(name) for name in tally.tensors})
    by_module = summarise(tally.tensors, {name: _module_of(name) for name in tally.tensors})
    record = {
        "schema_version": PLAN_SCHEMA_VERSION,
        "merge_method": NAME,
        "layerswap_version": __version__,
        "expert": str(recipe.expert),
        "base_model": str(recipe.base_model),
        "num_layers": num_layers,
        "parameters": recipe.spec.model_dump(),
        "threshold": threshold,
        "reverted_layers": sorted(layers),
        "kept": total.record(),
        "kept_by_layer": {name: kept.record() for name, kept in by_layer.items()},
        "kept_by_module": {name: kept.record() for name, kept in by_module.items()},
        "kept_by_tensor": {name: kept.record() for name, kept in tally.tensors.items()},
    }
    return Outcome(
        record,
        lines=(f"kept: {total.describe()}",),
        card=_card(recipe, threshold, layers, total, by_module),
    )


def _card(
    recipe: RevertRecipe,
    threshold: float | None,
    layers: frozenset[int],
    total: Kept,
    by_module: Mapping[str, Kept],
) -> str:
    """Return the section of the model card: what was reverted and what stays."""
    lines = ["### What was reverted", ""]
    if threshold is not None:
        lines.append(
            f"- every row (one input feature) whose mean absolute change is below {threshold:.6g}"
        )
    if layers:
        lines.append(f"- layers {format_layers(layers)}")
    if modules := recipe.spec.modules():
        lines.append(f"- modules: {', '.join(modules)}")
    lines += ["", f"{total.describe()}.", ""]
    lines += ["| | rows kept | weights kept |", "|---|---|---|"]
    for name, kept in by_module.items():
        lines.append(
            f"| {name} | {kept.kept_rows} of {kept.rows} | {kept.kept_weights} of {kept.weights} |"
        )
    return "\n".join(lines)


def _layer_of(name: str) -> str:
    layer = decoder_layer(name)
    return "non_layer" if layer is None else str(layer)


def _module_of(name: str) -> str:
    return "non_layer" if _layer_of(name) == "non_layer" else layer_part(name)
