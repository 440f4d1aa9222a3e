"""What a `layer_swap` merge says of itself: one record, and the log, plan file and card made of it.

Knows the numbers of `measure`; measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerswap_method.algorithm.coefficients import Input, source_terms
from layerswap_method.algorithm.plan import ROLES, LayerPlan
from layerswap_method.layer_swap.drawing import describe_plan, draw_plan
from layerswap_method.layer_swap.recipe import LayerSwapDocument
from layerswap_method.layer_swap.spec import NAME, LayerSwapSpec
from layerswap_method.output import PLAN_FILE, record_head

if TYPE_CHECKING:
    from layerswap_method.layer_swap.measure import Measured

POOLED = "the mean over all rows of all tensors of the model, each row once"
"""What is averaged; see `layerswap_method.deltas.rows` for what a row is."""


def plan_record(
    recipe: LayerSwapDocument,
    plan: LayerPlan,
    measured: Measured | None = None,
    note: str | None = None,
    tokenizer_from: str | None = None,
) -> dict[str, Any]:
    """Return what `layer_swap_plan.json` holds: layers, parameters, models, what was measured.

    Args:
        recipe: as it was read.
        plan: source of each layer.
        measured: None where nothing had to be.
        note: what a reader must know of the measured numbers.
        tokenizer_from: the model that gives tokenizer and config, where vocabularies differ.
    """
    modules = {name: list(sources) for name, sources in plan.modules.items()}
    deltas = {} if measured is None else measured_record(measured)
    if note is not None:
        deltas["note"] = note
    return {
        **record_head(NAME),
        "num_layers": plan.num_layers,
        "layers": list(plan.sources),
        **({"modules": modules} if modules else {}),
        "parameters": recipe.parameters.model_dump(),
        "models": [
            {"model": str(entry.model), **entry.parameters.model_dump()} for entry in recipe.experts
        ],
        "base_model": str(recipe.base_model),
        **({"tokenizer_from": tokenizer_from} if tokenizer_from is not None else {}),
        **({"deltas": deltas} if deltas else {}),
    }


def measured_record(measured: Measured) -> dict[str, Any]:
    """Return what plan files and records say of measured changes."""
    found: dict[str, Any] = {"base_model": measured.base.name}
    if measured.mavs:
        rows = zip(
            *(measured.experts, measured.mavs, measured.weights.models, _shares(measured)),
            strict=True,
        )
        found["pooled"] = POOLED
        found["weights"] = [
            {
                "model": expert.name,
                "role": expert.role,
                "mean_change": mav,
                "merge_weight": weight,
                "share_of_average": share,
            }
            for expert, mav, weight, share in rows
            if mav is not None
        ]
    if measured.plan is not None:
        found["units"] = [asdict(unit) for unit in measured.units]
    return found


def _shares(measured: Measured) -> list[float]:
    """Return the share of every input in an average of both roles."""
    given = zip(measured.experts, measured.weights.models, strict=True)
    inputs = [Input(expert.role, weight) for expert, weight in given]
    sides = measured.weights.applied_to(measured.spec).side_weights
    terms = source_terms("an average", "average", inputs, sides)
    found = dict(zip(terms.inputs, terms.coefficients, strict=True))
    return [found.get(i, 0.0) / terms.divisor for i in range(len(inputs))]


def log_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the plan in a few lines for the log, and what was measured for it."""
    for role in ROLES:
        soup = ", ".join(
            m["model"] + (f" (weight {m['weight']:g})" if m["weight"] != 1 else "")
            for m in record["models"]
            if m["role"] == role
        )
        yield f"{role} expert: {soup}"
    plan, parameters = _plan_of(record), record["parameters"]
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
        yield f"weighting: magnitude. Change from {deltas['base_model']}: {POOLED}"
        for row in deltas["weights"]:
            yield (
                f"  {row['role']} expert {row['model']}: mean |change| {row['mean_change']:.6g}, "
                f"weight {row['merge_weight']:.6g}, {row['share_of_average']:.1%} of an average"
            )
    if "units" in deltas:
        yield (
            f"placement: delta_share. Shares of the change from {deltas['base_model']}, by "
            f"{parameters['delta_unit']}"
        )
        yield from draw_plan(plan).splitlines()
    if "note" in deltas:
        yield deltas["note"]


def most_swapped(spec: LayerSwapSpec, plan: LayerPlan) -> str | None:
    """Return a warning where the swap takes most of the model; None where it does not.

    Most is more than half of the layers: the merge is then the language expert with layers of the
    task expert, and not the other way round. The paper swaps 7 of 32 at most (22 %).
    """
    swapped = len(plan.layers_from("language"))
    if spec.swap_modules != "all" or plan.modules or 2 * swapped <= plan.num_layers:
        return None
    text = (
        f"{swapped} of the {plan.num_layers} layers come from the language expert, more than half "
        "of the model (the paper swaps 7 of 32)"
    )
    if spec.placement in ("layers", "delta_share"):
        return text
    counts = {"bottom_layers": spec.bottom_layers, "top_layers": spec.top_layers}
    unset = [f"{name} {n}" for name, n in counts.items() if name not in spec.model_fields_set]
    default = f"; the default is {' and '.join(unset)} at any depth" if unset else ""
    return f"{text}{default}; to swap less, write smaller bottom_layers and top_layers"


def card(record: Mapping[str, Any]) -> str:
    """Return the sections for the model card, as markdown; empty where there is nothing to add."""
    deltas, sections = record.get("deltas", {}), []
    if "tokenizer_from" in record:
        sections += [
            "### Vocabulary",
            "",
            "The models have different vocabularies. The merge has the one of "
            f"`{record['tokenizer_from']}`, with its tokenizer and config.",
            "",
        ]
    if "weights" in deltas:
        sections += [
            "### Magnitude-adjusted weights",
            "",
            "Each expert's weight is multiplied by the inverse of its mean absolute change from "
            f"`{deltas['base_model']}`: {POOLED} (arXiv 2410.01335, section 5.1).",
            "",
            "| model | role | mean change | weight | share of an average |",
            "|---|---|---|---|---|",
            *(
                f"| `{row['model']}` | {row['role']} | {row['mean_change']:.6g} | "
                f"{row['merge_weight']:.6g} | {row['share_of_average']:.1%} |"
                for row in deltas["weights"]
            ),
            "",
        ]
    if "units" in deltas:
        sections += [
            "### Layers by what the experts changed",
            "",
            *_rule(record),
            "",
            "```",
            draw_plan(_plan_of(record)),
            "```",
        ]
    if "note" in deltas:
        sections.append(f"{deltas['note'][0].upper()}{deltas['note'][1:]}.\n")
    return "\n".join(sections)


def _rule(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield by which rule the layers were chosen."""
    parameters, base = record["parameters"], record["deltas"]["base_model"]
    if parameters.get("delta_dominance") is not None:
        yield (
            f"Each {parameters['delta_unit']} comes from the expert whose share of its whole "
            f"change from `{base}` is larger than the other's by more than "
            f"{parameters['delta_dominance']:.3g} of it, else from `{base}`. What is averaged "
            f"outside the layers is {_blend(record)} (after AraSwap; shares as in arXiv "
            "2601.22620)."
        )
        return
    yield (
        f"Each {parameters['delta_unit']} comes from the expert with the larger share of its "
        f"whole change from `{base}`; up to a difference of "
        f"{parameters['delta_threshold']:g} it is blended, {_blend(record)} (arXiv "
        "2601.22620)."
    )


def _blend(record: Mapping[str, Any]) -> str:
    """Return both roles' shares of a blend."""
    rows, parameters = record["deltas"].get("weights"), record["parameters"]
    if rows is not None:
        sides = [sum(r["share_of_average"] for r in rows if r["role"] == role) for role in ROLES]
    else:
        alpha = parameters["delta_blend"]
        sides = [alpha * parameters["task_weight"], (1 - alpha) * parameters["language_weight"]]
    return " and ".join(
        f"{side / sum(sides):.3g} {role}" for role, side in zip(ROLES, sides, strict=True)
    )


def read_plan(merged: Path) -> LayerPlan | None:
    """Return the layer plan that `layer_swap` left in a merged folder; None if it left none."""
    path = merged / PLAN_FILE
    return _plan_of(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _plan_of(record: Mapping[str, Any]) -> LayerPlan:
    modules = {name: tuple(sources) for name, sources in record.get("modules", {}).items()}
    return LayerPlan(tuple(record["layers"]), modules)
