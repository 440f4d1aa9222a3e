"""What becomes of measured changes: mergekit's configuration, log, plan file, model card.

Knows the numbers of `measure`; measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layerswap_method import __version__
from layerswap_method.algorithm.coefficients import mix_coefficients
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.layer_swap.measure import Measured
from layerswap_method.layer_swap.recipe import Recipe
from layerswap_method.layer_swap.spec import NAME, LayerSwapSpec
from layerswap_method.output import PLAN_FILE

POOLED = "the mean over all rows of all tensors of the model, each row once"
"""What is averaged; see `layerswap_method.deltas.rows` for what a row is."""


def measured_lines(measured: Measured) -> Iterator[str]:
    """Yield what was measured, for the log."""
    if measured.mavs:
        yield f"weighting: magnitude. Change from {measured.base.name}: {POOLED}"
        for row in _weights(measured):
            yield (
                f"  {row['role']} expert {row['model']}: mean |change| {row['mean_change']:.6g}, "
                f"weight {row['merge_weight']:.6g}, {row['share_of_average']:.1%} of an average"
            )
    if measured.plan is not None:
        yield (
            f"placement: delta_share. Shares of the change from {measured.base.name}, by "
            f"{measured.spec.delta_unit}"
        )
        yield from measured.plan.draw().splitlines()


def measured_record(measured: Measured) -> dict[str, Any]:
    """Return what plan files and records say of it."""
    found: dict[str, Any] = {"base_model": measured.base.name}
    if measured.mavs:
        found["pooled"] = POOLED
        found["weights"] = _weights(measured)
    if measured.plan is not None:
        found["units"] = [
            {
                "layer": unit.layer,
                "part": unit.part,
                "task_share": unit.task,
                "language_share": unit.language,
                "source": unit.source,
            }
            for unit in measured.units
        ]
    return found


def measured_card(measured: Measured) -> str:
    """Return the sections that the model card gets, as markdown."""
    sections = []
    if measured.mavs:
        sections += [
            "### Magnitude-adjusted weights",
            "",
            "Each expert's weight is multiplied by the inverse of its mean absolute change from "
            f"`{measured.base.name}`: {POOLED} (arXiv 2410.01335, section 5.1).",
            "",
            "| model | role | mean change | weight | share of an average |",
            "|---|---|---|---|---|",
            *(
                f"| `{row['model']}` | {row['role']} | {row['mean_change']:.6g} | "
                f"{row['merge_weight']:.6g} | {row['share_of_average']:.1%} |"
                for row in _weights(measured)
            ),
            "",
        ]
    if measured.plan is not None:
        spec = measured.spec
        sections += [
            "### Layers by what the experts changed",
            "",
            f"Each {spec.delta_unit} comes from the expert with the larger share of its whole "
            f"change from `{measured.base.name}`; up to a difference of "
            f"{spec.delta_threshold:g} it is blended, {_blend(measured)} (arXiv 2601.22620).",
            "",
            "```",
            measured.plan.draw(),
            "```",
        ]
    return "\n".join(sections)


def _weights(measured: Measured) -> list[dict[str, Any]]:
    """Return each expert of a magnitude weighting as a row of a table."""
    shares = dict(_shares(measured))
    return [
        {
            "model": expert.name,
            "role": expert.role,
            "mean_change": mav,
            "merge_weight": weight,
            "share_of_average": shares.get(i, 0.0),
        }
        for i, (expert, mav, weight) in enumerate(
            zip(measured.experts, measured.mavs, measured.weights.models, strict=True)
        )
        if mav is not None
    ]


def _blend(measured: Measured) -> str:
    by_role = dict.fromkeys(("task", "language"), 0.0)
    for i, share in _shares(measured):
        by_role[str(measured.experts[i].role)] += share
    return " and ".join(f"{share:.3g} {role}" for role, share in by_role.items())


def _shares(measured: Measured) -> Iterator[tuple[int, float]]:
    """Yield (number of an input, its share of an average of both roles)."""
    spec: LayerSwapSpec = measured.weights.applied_to(measured.spec)
    numbers = {
        role: [i for i, expert in enumerate(measured.experts) if expert.role == role]
        for role in ("task", "language")
    }
    given = {role: [measured.weights.models[i] for i in found] for role, found in numbers.items()}
    coefficients, divisor = mix_coefficients(given["task"], given["language"], *spec.side_weights)
    for i, coefficient in zip((*numbers["task"], *numbers["language"]), coefficients, strict=True):
        yield i, coefficient / divisor


PLAN_SCHEMA_VERSION = 1


def announcement(recipe: Recipe, plan: LayerPlan) -> Iterator[str]:
    """Yield the plan in a few lines for the log."""
    for role in ("task", "language"):
        soup = ", ".join(
            str(m.reference) + (f" (weight {m.weight:g})" if m.weight != 1 else "")
            for m in recipe.by_role(role)
        )
        yield f"{role} expert: {soup}"
    yield plan.describe()
    spec = recipe.spec
    yield (
        f"embeddings, final norm, lm_head: {spec.non_layer}; swapped modules: "
        f"{spec.swap_modules}; in-layer norms: {spec.layer_norms}"
    )


def plan_record(recipe: Recipe, plan: LayerPlan) -> dict[str, Any]:
    """Return what `layer_swap_plan.json` holds: layers, parameters, models."""
    modules = {name: list(sources) for name, sources in plan.by_module().items()}
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "merge_method": NAME,
        "layerswap_version": __version__,
        "num_layers": plan.num_layers,
        "layers": list(plan.sources),
        **({"modules": modules} if modules else {}),
        "parameters": recipe.spec.model_dump(),
        "models": [
            {"model": str(m.reference), "role": m.role, "weight": m.weight} for m in recipe.models
        ],
        "base_model": str(recipe.base_model),
    }


def read_plan(merged: Path) -> LayerPlan | None:
    """Return the layer plan that `layer_swap` left in a merged folder; None if it left none."""
    path = merged / PLAN_FILE
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    modules = found.get("modules")
    apart = None if modules is None else zip(modules["attention"], modules["mlp"], strict=True)
    return LayerPlan(tuple(found["layers"]), None if apart is None else tuple(apart))
