"""The answer of a study in one to five sentences. Knows words; the tests are made elsewhere."""

from __future__ import annotations

import statistics as plain
import textwrap
from collections.abc import Collection, Iterator, Sequence

from ablations.report.baselines import baseline_of
from ablations.report.comparisons import Comparer, Comparison, Outcome, compare_all, compare_models
from ablations.report.design import Group, Model, merge_notes
from ablations.report.experts_alone import experts_alone
from ablations.report.merged import as_merged
from ablations.report.observations import Measure, Observations
from ablations.report.primary import halves
from ablations.report.score_maps import LayerMap, layer_map
from ablations.report.summaries import Summaries
from ablations.report.targets import ordered
from ablations.report.wording import (
    difference_text,
    interval_text,
    is_evident,
    is_small,
    measure_text,
    named_level,
    not_compared,
)
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import Run
from ablations.statistics.as_text import percent, points
from ablations.study.schema import BaselineKind

_NO_DIFFERENCE = "does not differ significantly "
_NOTHING = (
    "No comparison was planned. The report has the scores of all cells; layerswap compare tests "
    "cells against each other."
)
_EXPERTS: tuple[BaselineKind, ...] = ("task_expert", "language_expert")
_MOST, _MOST_NUMBERS = 5, 4
"""Sentences, and settings without a difference whose numbers are given."""


def answer_text(run: Run) -> str:
    """Return question and bottom line for a terminal; empty for a run without a finished cell."""
    lines = bottom_line(run)
    if not lines:
        return ""
    notes = merge_notes(as_merged(run)[0].study, run.head.num_layers)
    return as_text(run.study.question, evaluation_problems(run), [*lines, *notes])


def bottom_line(run: Run) -> tuple[str, ...]:
    """Return the answer of `run` in plain sentences; empty for a run without a finished cell."""
    if not run.cells:
        return ()
    run, _ = as_merged(run)
    observations = Observations(run)
    comparer = Comparer(seed=run.study.evaluate.seed, level=run.study.evaluate.level)
    summaries = Summaries(observations, comparer)
    layers = layer_map(summaries)
    comparisons = compare_all(observations, comparer)
    return tuple(sentences(summaries, comparisons, layers))


def as_text(question: str, problems: Sequence[str], lines: Sequence[str], width: int = 100) -> str:
    """Return question, warnings and bottom line as they stand in a terminal."""
    shown = [question, *(f"Warning: {line}" for line in problems), *lines]
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in shown)


def sentences(
    summaries: Summaries,
    comparisons: Sequence[Comparison],
    layers: LayerMap | None,
) -> Iterator[str]:
    """Yield the sentences: the primary comparisons, the cost elsewhere, and what is not known.

    Args:
        summaries: of the run.
        comparisons: of the report.
        layers: the map of the study, where it has one.
    """
    observations = summaries.observations
    is_merged = observations.run.study.recipe is not None
    primary = [each for each in comparisons if each.is_primary and each.outcome is not None]
    found: list[str] = []
    told = {(each.group, each.measure) for each in primary}
    asked = observations.run.study.report.primary.against
    for group, measure in ordered(observations) if is_merged else ():
        here = [each for each in primary if (each.group, each.measure) == (group, measure)]
        swaps = [each for each in here if each.contrast.rival != "first_setting"]
        levels = [each for each in here if each.contrast.rival == "first_setting"]
        rivals = [_against_rivals(swaps), *_cost(observations, swaps[0], told)] if swaps else []
        names = dict.fromkeys(each.contrast.factor for each in levels)
        settings = [_against_first([c for c in levels if c.contrast.factor == n]) for n in names]
        # What the study names first is what it asks.
        is_settings_first = asked[:1] == ("first_setting",)
        found += [*settings, *rivals] if is_settings_first else [*rivals, *settings]
        best = None if layers is None else layers.best.get((group, measure))
        if here and layers is not None and best is not None:
            found.append(_region(layers, group, measure))
            found += _suggestion(observations, layers, group, measure)
    if not is_merged:
        found += experts_alone(summaries, comparisons)
    if not found:
        found += [f"{line}." for line in not_compared(comparisons)] or [_NOTHING]
    limits = " ".join(_limits(observations, primary))
    left, cells = len(observations.run.unfinished), len(observations.run.head.cells)
    if left:
        found[:1] = [f"Preliminary: {left} of {cells} cells have no result yet. {found[0]}"]
    yield from found[: _MOST - bool(limits)]
    if limits:
        yield limits


def _against_rivals(swaps: Sequence[Comparison]) -> str:
    """Return how the swap fares against every rival, in one sentence."""
    first = swaps[0]
    clauses = _clauses(swaps)
    where = measure_text(first.measure, first.group)
    text = f"On {where}, the {first.contrast.first} {', and '.join(clauses)}."
    if first.contrast.chosen_on:
        text += " What is best was chosen on one half of the items and compared on the other half."
    return text


def _clauses(swaps: Sequence[Comparison]) -> list[str]:
    """Return what is said of every rival; those without a difference share one clause."""
    clauses, level = list[str](), list[str]()
    for each in swaps:
        clause = _clause(each)
        same = clause.removeprefix(_NO_DIFFERENCE)
        (clauses if same == clause else level).append(same)
    if level:
        clauses.append(_NO_DIFFERENCE + " or ".join(level))
    return clauses


def _clause(comparison: Comparison) -> str:
    outcome = comparison.outcome
    assert outcome is not None
    rival = comparison.contrast.second
    if not rival.startswith("TIES"):
        rival = f"the {rival}"
    if comparison.is_same_model:
        return f"is the same model as {rival}"
    interval = interval_text(outcome)
    if not _is_evidence(comparison):
        alone = is_small(outcome, outcome.p)
        why = ", not significant after correction" if alone else ""
        numbers = f"{points(outcome.difference)} points {interval}{why}"
        return f"{_NO_DIFFERENCE}from {rival} ({numbers})"
    if (outcome.difference > 0) == comparison.measure.higher_is_better:
        return f"beats {rival} by {percent(abs(outcome.difference))} points {interval}"
    return f"is {percent(abs(outcome.difference))} points {interval} worse than {rival}"


def _against_first(levels: Sequence[Comparison]) -> str:
    """Return which settings differ from the first one, in one sentence."""
    measure, group = levels[0].measure, levels[0].group
    first = levels[0].contrast.second
    shown = {True: "better", False: "worse"}
    told: dict[str, list[str]] = {"better": [], "worse": [], "not": [], "same": []}
    for each in levels:
        outcome = each.outcome
        assert outcome is not None
        label = each.contrast.first
        if each.contrast.shared:
            label += f" ({each.contrast.shared})"
        if each.is_same_model:
            told["same"].append(label)
        elif not _is_evidence(each):
            numbers = f" ({difference_text(outcome)})"
            told["not"].append(label + numbers * (len(levels) <= _MOST_NUMBERS))
        else:
            way = shown[(outcome.difference > 0) == measure.higher_is_better]
            told[way].append(f"{label} ({difference_text(outcome)})")
    parts = [f"{way}: {', '.join(told[way])}" for way in ("better", "worse") if told[way]]
    if told["not"]:
        parts.append(f"no evidence of a difference: {', '.join(told['not'])}")
    if told["same"]:
        parts.append(f"the same model: {', '.join(told['same'])}")
    name = named_level(levels[0].contrast, first)
    return f"On {measure_text(measure, group)}, compared with {name}: {'; '.join(parts)}."


def _cost(
    observations: Observations, swap: Comparison, told: Collection[tuple[Group, Measure]]
) -> Iterator[str]:
    """Yield what the swap loses or gains on the other tasks, against the better expert there.

    Args:
        observations: of the run.
        swap: what is compared.
        told: what has a sentence of its own.
    """
    models = swap.contrast.first_models
    kinds = [kind for kind in _EXPERTS if kind in observations.run.study.baseline]
    parts = []
    for group, measure in ordered(observations):
        if group != swap.group or (group, measure) in told:
            continue
        sign = 1 if measure.higher_is_better else -1
        scored = []
        for kind in kinds:
            rivals = _distinct(tuple(baseline_of(kind, model) for model in models))
            items = observations.items(group, measure)
            block = observations.block(rivals, group, measure, items)
            if block is not None:
                scored.append((sign * block.average(), rivals))
        if not scored:
            continue
        rivals = max(scored, key=lambda each: each[0])[1]
        outcome = compare_models(observations, group, measure, (models, rivals))
        if outcome is not None:
            parts.append(
                f"{measure_text(measure, group)} {points(outcome.difference)} points "
                f"{interval_text(outcome)} compared with the {rivals[0].label}"
            )
    if parts:
        yield f"On the other tasks: {'; '.join(parts)} (exploratory)."


def _region(layers: LayerMap, group: Group, measure: Measure) -> str:
    best = layers.best[group, measure]
    near = [place for place, models in layers.places.items() if models in best.near]
    at = next(place for place, models in layers.places.items() if models == best.best)
    spans = [sorted({place[side] for place in near}) for side in (0, 1)]
    shown = " and ".join(
        f"{name} from {span[0]} to {span[-1]}" if len(span) > 1 else f"{name}={span[0]}"
        for name, span in zip("bu", spans, strict=True)
    )
    return (
        f"The best setting of the map on {measure_text(measure, group)} is b={at[0]} u={at[1]}; "
        f"{len(best.near)} of {best.number_of} models are not significantly worse ({shown})."
    )


def _suggestion(
    observations: Observations,
    layers: LayerMap,
    group: Group,
    measure: Measure,
) -> Iterator[str]:
    """Yield how far what `layerswap suggest` proposes is from the best."""
    if not layers.suggested:
        return
    best = layers.best[group, measure]
    label = layers.suggested[0].short.removeprefix("suggested ")
    if layers.suggested == best.best:
        yield f"layerswap suggest proposes {label}, which is this best setting."
        return
    _, testing = halves(observations.items(group, measure), observations.run.study.evaluate.seed)
    pair = layers.suggested, best.best
    outcome = compare_models(observations, group, measure, pair, testing)
    if outcome is not None:
        yield (
            f"layerswap suggest proposes {label}: {points(outcome.difference)} points "
            f"{interval_text(outcome)} compared with the best, on the half of the items that did "
            "not choose it."
        )


def _limits(observations: Observations, primary: Sequence[Comparison]) -> Iterator[str]:
    """Yield what the data cannot tell."""
    widths: dict[tuple[Group, Measure], list[Outcome]] = {}
    for each in primary:
        if each.outcome is not None and not each.is_same_model:
            widths.setdefault((each.group, each.measure), []).append(each.outcome)
    for (group, measure), outcomes in list(widths.items())[:1]:
        half = plain.median((outcome.high - outcome.low) / 2 for outcome in outcomes)
        items = outcomes[0].items
        count = f"{items:,} item{'s' * (items != 1)}"
        yield (
            f"What the data cannot tell: with {count}, differences under about "
            f"{percent(half)} points on {measure_text(measure, group)} are within noise."
        )
    if all(group.task_experts * group.language_experts == 1 for group in observations.groups):
        yield "One training run of each expert was used; another may come out differently."


def _distinct(models: tuple[Model, ...]) -> tuple[Model, ...]:
    return models[:1] if len(set(models)) == 1 else models


def _is_evidence(comparison: Comparison) -> bool:
    return comparison.is_primary and is_evident(comparison)
