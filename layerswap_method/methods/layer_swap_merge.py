"""The merge of a `layer_swap` recipe: its plan, what is measured for it, and every tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerswap_method import __version__
from layerswap_method.average import weighted_inputs
from layerswap_method.checkpoint.checkpoint import Checkpoint
from layerswap_method.checkpoint.compatible import merge_problems, same_vocabulary
from layerswap_method.errors import InputError, input_errors
from layerswap_method.methods.delta_share import Measured, measure_deltas
from layerswap_method.methods.layer_swap import LayerSwapRecipe, LayerSwapSpec
from layerswap_method.output import PLAN_FILE
from layerswap_method.plan import ROLES, LayerPlan, describe_plan, draw_plan
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import layer_part
from layerswap_method.tensors import LazyModel, Merge, TensorMix, build_merge


def merge_by_layers(recipe: LayerSwapRecipe, models: Mapping[str, Model]) -> Merge:
    """Return the merge; see `merge_models`. The base is the donor if its vocabulary fits."""
    spec = recipe.parameters
    read = {reference: LazyModel.read(models[reference]) for reference in recipe.references}
    base = read[str(recipe.base_model)]
    checkpoints = [model.checkpoint for model in read.values()]
    givers = set(recipe.embedding_givers)
    InputError.raise_any("layer_swap recipe", merge_problems(checkpoints, rows_from=givers))
    of_rows = [model for reference, model in read.items() if reference in givers]
    source = donor_of([model.checkpoint for model in of_rows], base.checkpoint)
    donor = next(model for model in read.values() if model.checkpoint is source)
    others = [model for model in checkpoints if not same_vocabulary(source, model)]
    measured = lay_out(recipe, checkpoints[0], models)
    given = [*(read[entry.model] for entry in recipe.experts), base]
    inputs = recipe.inputs(measured.scales)

    def mix(name: str) -> TensorMix:
        layer = checkpoints[0].decoder.layer(name)
        source = spec.tensor_source(name, layer, measured.plan)
        made_of = weighted_inputs(name, source, inputs, spec.side_weights)
        if len(made_of.inputs) == 1:
            return given[made_of.inputs[0]].copy_mix(name, recipe.written_dtype)
        terms = (given[i].term(name, share) for i, share in zip(*made_of, strict=True))
        return TensorMix(terms=tuple(terms), dtype=recipe.written_dtype)

    with input_errors("layer_swap recipe"):
        dtype, parent = recipe.written_dtype, base.checkpoint
        merge = build_merge([*read.values()], mix, donor, dtype, givers, parent)
    record = swap_record(recipe, measured.plan, measured, donor.checkpoint.name if others else None)
    warnings = (*merge.warnings, *large_swap_warning(spec, measured.plan))
    lines = (*swap_lines(record), *merge.lines)
    return replace(merge, record=record, lines=lines, warnings=warnings, plan=measured.plan)


def donor_of(givers: Sequence[Checkpoint], base: Checkpoint) -> Checkpoint:
    """Return whose config and tokenizer a merge has, of which `givers` give the vocabulary rows.

    They are the base's, unless its tokens are not those of the rows.
    """
    is_alike = any(same_vocabulary(giver, base) for giver in givers)
    return base if is_alike else givers[0]


def lay_out(recipe: LayerSwapRecipe, first: Checkpoint, models: Mapping[str, Model]) -> Measured:
    """Return plan and scales of a merge; changes are measured where the recipe goes by them."""
    spec, depth = recipe.parameters, first.depth()
    check_swap_modules(spec, first)
    with input_errors("layer_swap recipe"):
        plan = LayerPlan(()) if spec.placement == "delta_share" else spec.plan(depth)
    return measure_deltas(recipe, models, depth, plan)


def check_swap_modules(spec: LayerSwapSpec, model: Checkpoint) -> None:
    """Raise `InputError` where the layers of a model lack what ``swap_modules`` names."""
    parts = {layer_part(name) for name in model.tensors if model.decoder.layer(name) is not None}
    if spec.swap_modules not in ("all", *parts):
        raise InputError(
            f"layer_swap recipe: swap_modules is {spec.swap_modules}, but the layers of "
            f"{model.name} have no such tensors (found: {', '.join(sorted(parts)) or 'no layers'})"
        )


def large_swap_warning(spec: LayerSwapSpec, plan: LayerPlan) -> Iterator[str]:
    """Yield a warning where the merge is the language expert with layers of the task expert."""
    swapped = len(plan.layers_from("language"))
    if spec.swap_modules != "all" or plan.modules or 2 * swapped <= plan.num_layers:
        return
    is_counted = spec.placement not in ("layers", "delta_share")
    advice = "; to swap less, write smaller bottom_layers and top_layers" if is_counted else ""
    yield (
        f"{swapped} of the {plan.num_layers} layers come from the language expert, more than half "
        f"of the model (the paper swaps 7 of 32){advice}"
    )


def swap_record(
    recipe: LayerSwapRecipe,
    plan: LayerPlan,
    measured: Measured | None = None,
    tokenizer_from: str | None = None,
) -> dict[str, Any]:
    """Return what `layer_swap_plan.json` holds: layers, parameters, models, what was measured."""
    deltas: dict[str, Any] = {}
    if measured is not None and measured.mavs:
        entries = zip(recipe.experts, measured.mavs, measured.scales, strict=True)
        deltas["weights"] = [
            {
                "model": entry.model,
                "role": entry.parameters.role,
                "mean_change": mav,
                "merge_weight": entry.parameters.weight * scale,
            }
            for entry, mav, scale in entries
            if mav is not None
        ]
    if measured is not None and measured.units:
        deltas["units"] = [unit._asdict() for unit in measured.units]
    modules = {name: list(sources) for name, sources in plan.modules.items()}
    base = str(recipe.base_model)
    return {
        "schema_version": 1,
        "merge_method": recipe.merge_method,
        "layerswap_version": __version__,
        "num_layers": plan.num_layers,
        "layers": list(plan.sources),
        **({"modules": modules} if modules else {}),
        "parameters": recipe.parameters.model_dump(),
        "models": [
            {"model": entry.model, **entry.parameters.model_dump()} for entry in recipe.experts
        ],
        "base_model": base,
        **({"tokenizer_from": tokenizer_from} if tokenizer_from is not None else {}),
        **({"deltas": {"base_model": base, **deltas}} if deltas else {}),
    }


def swap_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plan in a few lines for log and card, and what was measured for it."""
    for role in ROLES:
        soup = [(m["model"], m["weight"]) for m in record["models"] if m["role"] == role]
        shown = [name if weight == 1 else f"{name} (weight {weight:g})" for name, weight in soup]
        yield f"{role} expert: {', '.join(shown)}"
    plan, parameters = plan_of_record(record), record["parameters"]
    yield describe_plan(plan)
    yield (
        f"embeddings, final norm, lm_head: {parameters['non_layer']}; swapped modules: "
        f"{parameters['swap_modules']}; in-layer norms: {parameters['layer_norms']}"
    )
    if "tokenizer_from" in record:
        yield (
            "the models have different vocabularies: the merge has the one of "
            f"{record['tokenizer_from']}, with its tokenizer and config"
        )
    deltas = record.get("deltas", {})
    if "weights" in deltas:
        yield f"weighting: magnitude, by the mean change from {deltas['base_model']}"
        for row in deltas["weights"]:
            yield (
                f"  {row['role']} expert {row['model']}: mean |change| {row['mean_change']:.6g}, "
                f"weight {row['merge_weight']:.6g}"
            )
    if "units" in deltas:
        yield (
            f"placement: delta_share. Shares of the change from {deltas['base_model']}, by "
            f"{parameters['delta_unit']}"
        )
        yield from draw_plan(plan).splitlines()


def read_plan(merged: Path) -> LayerPlan | None:
    """Return the layer plan that `layer_swap` left in a merged folder; None if it left none."""
    path = merged / PLAN_FILE
    return plan_of_record(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def plan_of_record(record: Mapping[str, Any]) -> LayerPlan:
    """Return the layer plan of a plan file's content."""
    modules = {name: tuple(sources) for name, sources in record.get("modules", {}).items()}
    return LayerPlan(tuple(record["layers"]), modules)
