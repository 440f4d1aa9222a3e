"""The forest plot of a study: every model against one reference. Knows no plotting library."""

from __future__ import annotations

from collections.abc import Sequence

from ablations.drawing.forest import Estimate, Forest, ForestPanel
from ablations.report.baselines import (
    baseline_of,
    baseline_rows,
    of_like_experts,
    reference_kind,
    shown_baselines,
)
from ablations.report.comparisons import compare_models
from ablations.report.design import Group, Model, recipe_models
from ablations.report.factors import settled
from ablations.report.observations import Measure, Observations
from ablations.report.targets import ordered
from ablations.report.wording import measure_text
from ablations.study.documents import LAYER_SWAP

_MOST_ROWS = 40
_MOST_PANELS = 6

_Row = tuple[str, tuple[Model, ...]]


def forest(observations: Observations) -> Forest | None:
    """Return the plot; None where there is nothing to compare, or too much for one plot."""
    study = observations.run.study
    kind = reference_kind(study)
    shown = shown_baselines(study)
    rows: list[_Row] = [each for each in shown.items() if each[1][0].kind != kind]
    settings = settings_of(observations)
    if kind is None and settings:
        (reference, first), *settings = settings
    elif kind is not None:
        kinds = baseline_rows(study)
        reference, first = next((n, m) for n, m in kinds.items() if m[0].kind == kind)
    else:
        return None
    number = len(rows)
    rows += settings
    if not 0 < len(rows) <= _MOST_ROWS:
        return None
    panels = []
    for group, measure in ordered(observations)[:_MOST_PANELS]:
        estimates = []
        for _, models in rows:
            against = first
            if models[0].kind == "recipe" and kind is not None:
                against = tuple(baseline_of(kind, model) for model in models)
            elif len(models) == 1:
                against = of_like_experts(models[0], first)
            if len(set(against)) == 1:
                against = against[:1]
            estimates.append(_estimate(observations, group, measure, models, against))
        if any(each is not None for each in estimates):
            panels.append(ForestPanel(measure_text(measure, group), tuple(estimates)))
    if not panels:
        return None
    caption = (
        f"Lines: {study.evaluate.level:.0%} intervals of the difference on the same items. Filled "
        "points have an interval that excludes zero. Intervals are not corrected for their number."
    )
    if kind is not None and len(first) > 1:
        caption += (
            f" A model is compared with the {reference} of its own experts, where there is one; "
            "others with the average."
        )
    return Forest(
        "differences",
        f"Difference from the {reference}",
        caption,
        tuple(name for name, _ in rows),
        number,
        reference,
        tuple(panels),
    )


def settings_of(observations: Observations) -> list[_Row]:
    """Return label and models of every setting; those that differ by their seed are one."""
    study = observations.run.study
    if study.recipe is None:
        return []
    prefix = "swap " if study.recipe.get("merge_method") == LAYER_SWAP else ""
    # Where nothing is varied, the short label is the whole one, which names the method.
    labels = {
        model: model.label if model.short == model.label else prefix + model.short
        for model in recipe_models(study)
    }
    found = []
    for setting, models in settled(study):
        label = labels[models[0]]
        if len(set(models)) > 1:
            seed = f"seed={setting.get('seed', '')}"
            label = " ".join(word for word in label.split() if not word.startswith(seed[:5]))
            label += f" ({len(set(models))} draws)"
        found.append((label, models))
    return found


def _estimate(
    observations: Observations,
    group: Group,
    measure: Measure,
    models: Sequence[Model],
    against: Sequence[Model],
) -> Estimate | None:
    if len({1, len(models), len(against)}) > 2:
        return None  # averages of different experts, which have no like
    pair = tuple(models), tuple(against)
    outcome = compare_models(observations, group, measure, pair)
    if outcome is None:
        return None
    return Estimate(100 * outcome.difference, 100 * outcome.low, 100 * outcome.high)
