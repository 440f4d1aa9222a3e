"""The merge of a `layer_swap` recipe: its plan, what is measured for it, and every tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from layerswap_method import __version__
from layerswap_method.average import weighted_inputs
from layerswap_method.checkpoint.compatible import Checked, same_vocabulary
from layerswap_method.errors import input_errors
from layerswap_method.layer_plan import (
    ROLES,
    LayerPlan,
    describe_plan,
    draw_plan,
)
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.measured import Measured, measured_plan
from layerswap_method.tensors import Merge, OpenModel, TensorMix, build_merge


def merge_by_layers(
    recipe: LayerSwapRecipe, models: Mapping[str, OpenModel], checked: Checked
) -> Merge:
    """Return the merge; see `merge_models`. The base is the donor if its vocabulary fits."""
    spec, base = recipe.parameters, models[str(recipe.base_model)]
    first, *_ = checkpoints = [model.checkpoint for model in models.values()]
    measured = measured_plan(recipe, models)
    input_models = [*(models[entry.model] for entry in recipe.experts), base]
    inputs = recipe.inputs(measured.scales)

    def mix(name: str) -> TensorMix:
        source = spec.tensor_source(name, first.decoder.layer(name), measured.plan)
        mean = weighted_inputs(name, source, inputs, spec.average_weights)
        if len(mean.inputs) == 1:
            return input_models[mean.inputs[0]].copy_mix(name, recipe.written_dtype)
        terms = (
            input_models[position].term(name, coefficient)
            for position, coefficient in zip(mean.inputs, mean.coefficients, strict=True)
        )
        return TensorMix(terms=tuple(terms), dtype=recipe.written_dtype)

    with input_errors("layer_swap recipe"):
        merge = build_merge([*models.values()], mix, recipe.written_dtype, checked, base.checkpoint)
    is_one_vocabulary = checked.donor is base.checkpoint and all(
        same_vocabulary(checked.donor, model) for model in checkpoints
    )
    record = swap_record(
        recipe,
        measured.plan,
        measured,
        tokenizer_from=None if is_one_vocabulary else checked.donor.name,
    )
    return replace(
        merge,
        record=record,
        lines=(*swap_lines(record), *merge.lines),
        warnings=(*merge.warnings, *recipe.plan_warnings(measured.plan)),
        plan=measured.plan,
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
    record: dict[str, Any] = {
        "schema_version": 1,
        "merge_method": recipe.merge_method,
        "layerswap_version": __version__,
        "num_layers": plan.num_layers,
        "layers": list(plan.sources),
    }
    if modules:
        record["modules"] = modules
    record["parameters"] = recipe.parameters.model_dump()
    record["models"] = [
        {"model": entry.model, **entry.parameters.model_dump()} for entry in recipe.experts
    ]
    record["base_model"] = base
    if tokenizer_from is not None:
        record["tokenizer_from"] = tokenizer_from
    if deltas:
        record["deltas"] = {"base_model": base, **deltas}
    return record


def swap_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plan in a few lines for log and card, and what was measured for it."""
    for role in ROLES:
        experts = []
        for model in record["models"]:
            if model["role"] == role:
                weight = "" if model["weight"] == 1 else f" (weight {model['weight']:g})"
                experts.append(f"{model['model']}{weight}")
        yield f"{role} expert: {', '.join(experts)}"
    plan, parameters = plan_of_record(record), record["parameters"]
    yield describe_plan(plan)
    yield (
        f"embeddings, final norm, lm_head: {parameters['non_layer']}; swapped modules: "
        f"{parameters['swap_modules']}; in-layer norms: {parameters['layer_norms']}"
    )
    if "tokenizer_from" in record:
        yield (
            "the models have different vocabularies: the merge has the one of "
            f"{record['tokenizer_from']}, with its config and what tokenizer it has"
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


def swap_outline(recipe: LayerSwapRecipe, plan: LayerPlan) -> Iterator[str]:
    """Yield what is known of a merge before it, in lines."""
    yield from swap_lines(swap_record(recipe, plan))


def swap_measured(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a plan file says of the experts' changes; None where none were measured."""
    deltas: Mapping[str, Any] | None = record.get("deltas")
    return deltas


def plan_of_record(record: Mapping[str, Any]) -> LayerPlan:
    """Return the layer plan of a plan file's content."""
    modules = {name: tuple(sources) for name, sources in record.get("modules", {}).items()}
    return LayerPlan(tuple(record["layers"]), modules)
