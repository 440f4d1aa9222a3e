"""What becomes of measured changes: mergekit's configuration, log, plan file, model card.

Knows the numbers of `measure`; measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layerswap_method.arithmetic import mix_coefficients
from layerswap_method.measure import Measured
from layerswap_method.spec import PLAN_PARAMETER, LayerSwapSpec

POOLED = "the mean over all rows of all tensors of the model, each row once"
"""What is averaged; see `layerswap_method.deltas.rows` for what a row is."""


ALIGNED = (
    "vocabulary rows are compared as they are stored, before the recipe aligns them: experts that "
    "number the same tokens otherwise than the base seem to have changed far"
)
"""Said where a recipe has ``tokenizer:`` and measures whole models."""


def measured_config(merge_config: Any, measured: Measured) -> Any:
    """Return mergekit's configuration with the measured weights and plan written into it.

    Args:
        merge_config: the recipe's own; not changed.
        measured: for that recipe.
    """
    config = merge_config.model_copy(deep=True)
    parameters = {k: v for k, v in (config.parameters or {}).items() if k != "weighting"}
    weights = measured.weights
    parameters |= {"task_weight": weights.task, "language_weight": weights.language}
    if measured.plan is not None:
        parameters[PLAN_PARAMETER] = measured.plan.to_text()
    config.parameters = parameters
    of_model = {
        expert.name: weight for expert, weight in zip(measured.experts, weights.models, strict=True)
    }
    for entry in _entries(config):
        if str(entry.model) in of_model and (entry.parameters or {}).get("role") is not None:
            entry.parameters = {**entry.parameters, "weight": of_model[str(entry.model)]}
    return config


def _entries(config: Any) -> Iterator[Any]:
    """Yield every input of a configuration, wherever it stands."""
    for holder in (config, *(config.modules or {}).values()):
        yield from holder.models or ()
        for out in holder.slices or ():
            yield from out.sources


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
