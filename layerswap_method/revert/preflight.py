"""The checks of a `delta_revert` merge, its threshold, and what it says about itself.

Knows the order of the checks; what happens around the merge is in `run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method import __version__
from layerswap_method.checking import MergeInputs, check_checkpoints, read_inputs
from layerswap_method.errors import InputError
from layerswap_method.mergekit_api import recipe_fields
from layerswap_method.output import REVERT_PLAN_FILE
from layerswap_method.plan import format_layers
from layerswap_method.revert.method import NAME, start_tally
from layerswap_method.revert.recipe import RevertRecipe, read_revert_recipe, reverted_layers
from layerswap_method.run import Outcome, Prepared
from layerswap_method.tensors import decoder_layer, layer_part

if TYPE_CHECKING:
    from layerswap_method.revert.rows import Kept, Tally

PLAN_SCHEMA_VERSION = 1


def prepare(
    merge_config: Any, options: Any, document: Mapping[str, Any] | None, out: Path
) -> Prepared:
    """Return a `delta_revert` merge that mergekit can carry out, its threshold measured.

    Raises:
        InputError: listing every problem of the first kind found (recipe, then references, then
            checkpoints), before any output exists.
    """
    recipe = read_revert_recipe(merge_config, document, known=recipe_fields())
    references = [recipe.expert, recipe.base_model]
    inputs = read_inputs(NAME, references, merge_config, options, out)
    _check_vocabularies(inputs)
    check_checkpoints(NAME, inputs, merge_config, options)
    num_layers = inputs.checkpoints[1].depth()
    layers = reverted_layers(recipe.spec, num_layers)
    threshold = _threshold(recipe, inputs)
    parameters = {k: v for k, v in (merge_config.parameters or {}).items() if k != "keep_fraction"}
    if threshold is not None:
        parameters["threshold"] = threshold
    tally = start_tally()
    return Prepared(
        merge_config=merge_config.model_copy(update={"parameters": parameters}),
        lines=tuple(_announcement(recipe, layers, num_layers, threshold)),
        plan_file=REVERT_PLAN_FILE,
        outcome=lambda: _outcome(recipe, layers, num_layers, threshold, tally),
    )


def _check_vocabularies(inputs: MergeInputs) -> None:
    """Refuse vocabularies that differ: mergekit could cut or align them, rows could not be.

    Comes before the checks that any merge needs, whose advice is a `tokenizer:` of the recipe.
    """
    expert, base = inputs.checkpoints
    for name, shape in expert.shapes.items():
        other = base.shapes.get(name, shape)
        counts_tokens = shape[:1] == (expert.vocab_size,) or other[:1] == (base.vocab_size,)
        if counts_tokens and other != shape and len(shape) == 2 and other[1:] == shape[1:]:
            raise InputError(
                f"delta_revert recipe: {name} is {list(shape)} in {expert.name} and "
                f"{list(other)} in {base.name}; rows are compared one by one: give the "
                "base with the expert's vocabulary (load it, resize_token_embeddings, save it)"
            )


def _threshold(recipe: RevertRecipe, inputs: MergeInputs) -> float | None:
    """Return the threshold below which rows go back; None where rows are not looked at.

    For `keep_fraction` both checkpoints are read once, in blocks.

    Raises:
        InputError: where the base is not the expert's, or a tensor cannot be read.
    """
    spec = recipe.spec
    if not spec.by_row:
        return None
    from layerswap_method.deltas.pairs import open_pair
    from layerswap_method.revert.measure import measure_rows
    from layerswap_method.streams import StreamInput

    expert, base = (StreamInput(c.name, c.path) for c in inputs.checkpoints)
    pair = open_pair(expert, base)
    return spec.threshold if spec.keep_fraction is None else measure_rows(pair).threshold(spec)


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
    from layerswap_method.revert.rows import summarise

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
