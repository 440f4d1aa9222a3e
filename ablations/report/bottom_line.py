"""The answer of a study in one to five sentences. Knows words; the tests are made elsewhere."""

from __future__ import annotations

import itertools
import statistics as plain
import textwrap
from collections.abc import Collection, Iterator, Sequence

from ablations.report.among_settings import among_settings
from ablations.report.baselines import baseline_of, kind_text
from ablations.report.comparisons import Comparer, Comparison, compare_all, compare_models
from ablations.report.design import WHOLE_EXPERT, Group, Model, merge_notes
from ablations.report.experts_alone import experts_alone
from ablations.report.merged import as_merged
from ablations.report.missing import failure_problems, unfinished_text
from ablations.report.observations import Measure, Observations
from ablations.report.primary import Choice, halves, primary_measures, rivals
from ablations.report.readings import (
    compared_with,
    is_too_short,
    listed,
    place_of_reading,
    told_difference,
)
from ablations.report.score_maps import LayerMap, layer_map
from ablations.report.summaries import Summaries
from ablations.report.targets import ordered
from ablations.report.wording import (
    interval_text,
    is_evident,
    measure_text,
    named_level,
    not_compared,
)
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import Run
from ablations.statistics.as_text import percent, points
from ablations.study.schema import BaselineKind, Rival

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
    problems = [*failure_problems(run), *evaluation_problems(run)]
    return as_text(run.study.question, problems, [*lines, *notes])


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
    among: list[str] = []
    costs: list[str] = []
    told = {(each.group, each.measure) for each in primary}
    asked = rivals(observations.run.study)
    # What the study names first is what it asks; pairs of settings come before `against`.
    is_settings_first = (
        asked[:1] == ("first_setting",) or observations.run.study.report.primary.contrasts
    )
    # Where the study names a setting, its question is another than which one is best.
    is_open = observations.run.study.report.primary.setting is None
    for group, measure in ordered(observations) if is_merged else ():
        here = [each for each in primary if (each.group, each.measure) == (group, measure)]
        swaps = [each for each in here if each.contrast.rival != "first_setting"]
        swaps.sort(key=lambda each: _place(each, asked))
        levels = [each for each in here if each.contrast.rival == "first_setting"]
        answers = [_against_rivals(swaps) + _without_swap(observations, swaps)] if swaps else []
        costs += _cost(observations, swaps[0], told) if swaps else []
        firsts: dict[tuple[str, str], list[Comparison]] = {}
        for each in levels:
            firsts.setdefault((each.contrast.factor, each.contrast.second), []).append(each)
        settings = [_against_first(some) for some in firsts.values()]
        found += [*settings, *answers] if is_settings_first else [*answers, *settings]
        best = None if layers is None else layers.best.get((group, measure))
        if here and layers is not None and best is not None:
            among.append(_region(layers, group, measure))
            among += _suggestion(observations, layers, group, measure)
        elif is_open and not levels and measure in primary_measures(observations, group):
            among.append(among_settings(observations, group, measure))
    if is_merged and not found:
        found += [f"{line}." for line in not_compared(comparisons)]
    if layers is None:
        among = [" ".join(filter(None, among))]
    shared = [f"On the other tasks: {'; '.join(costs)} (exploratory)."] if costs else []
    # A map's own sentences come after what the swap costs.
    found += [*shared, *among] if layers is not None else [*filter(None, among), *shared]
    if not is_merged:
        found += experts_alone(summaries, comparisons)
    found = found or [_NOTHING]
    limits = " ".join(_limits(observations, primary))
    unfinished = unfinished_text(observations.run)
    if unfinished:
        found[:1] = [f"{unfinished} {found[0]}"]
    yield from found[: _MOST - bool(limits)]
    if limits:
        yield limits


def _place(comparison: Comparison, asked: Sequence[Rival]) -> int:
    rival = comparison.contrast.rival
    return asked.index(rival) if rival in asked else len(asked)


def _against_rivals(swaps: Sequence[Comparison]) -> str:
    """Return how the swap fares against every rival, and what of it was chosen on which items."""
    first = swaps[0]
    choices = [each.contrast.choice for each in swaps]
    where = f"On {measure_text(first.measure, first.group)}"
    said = listed(_clauses(swaps), ", and ")
    chosen = next((each for each in choices if each is not None), None)
    is_expert_chosen = any(each is not None and each.experts > 1 for each in choices)
    if chosen is None:
        return f"{where}, the {first.contrast.first} {said}."
    if chosen.settings > 1:
        text = (
            f"{where}, {chosen.setting} ({_choice(chosen)} on one half of the items) was compared "
            f"on the other half: it {said}."
        )
        also = " The better expert was chosen on the same half as the setting."
        return text + also * is_expert_chosen
    outcomes = [each.outcome for each in swaps if each.contrast.choice and each.outcome]
    text = (
        f"{where}, the {first.contrast.first} {said}. Which expert is better was chosen on "
        f"{chosen.items} items and compared on the other {outcomes[0].items}"
    )
    rest = [each for each in swaps if each.contrast.choice is None and each.outcome]
    if rest and rest[0].outcome is not None:
        names = listed(list(map(_rival, rest)))
        text += f"; {names} on all {rest[0].outcome.items}"
    return f"{text}."


def _without_swap(observations: Observations, swaps: Sequence[Comparison]) -> str:
    """Return that what is compared takes all layers from one expert; empty for a true swap."""
    if (observations.run.study.recipe or {}).get("merge_method") != "layer_swap":
        return ""
    contrast = swaps[0].contrast
    found = [observations.cells(model, swaps[0].group) for model in contrast.first_models]
    plans = [cell.plan for cells in found for cell in cells.values() if cell is not None]
    sources = {source for plan in plans for source in plan or ("average",)}
    if sources not in ({"task"}, {"language"}):
        return ""
    name = contrast.first if contrast.choice is None else contrast.choice.setting
    name = name or f"the {contrast.first}"
    return f" Note: {name} swaps no layer; every layer is the {sources.pop()} expert's."


def _choice(chosen: Choice) -> str:
    """Return what the chosen setting is among the others."""
    number = chosen.settings
    if chosen.tied == 1:
        return f"the best of {number} settings"
    if chosen.tied == number:
        return f"the first of {number} settings that tie"
    return f"the first of {chosen.tied} that tie as the best of {number} settings"


def _clauses(swaps: Sequence[Comparison]) -> list[str]:
    """Return what is said of every rival; neighbours without a difference share one clause."""
    clauses = list[str]()
    said = [_clause(each) for each in swaps]
    for is_level, some in itertools.groupby(said, lambda each: each.startswith(_NO_DIFFERENCE)):
        if is_level:
            level = listed([each.removeprefix(_NO_DIFFERENCE) for each in some], " or ")
            clauses.append(_NO_DIFFERENCE + level)
        else:
            clauses += some
    return clauses


def _clause(comparison: Comparison) -> str:
    outcome = comparison.outcome
    assert outcome is not None
    rival = _with_article(comparison.contrast.second)
    if comparison.is_same_model:
        return f"is the same model as {rival}"
    interval = interval_text(outcome)
    if not is_evident(comparison):
        return f"{_NO_DIFFERENCE}from {rival} ({told_difference(comparison)})"
    if (outcome.difference > 0) == comparison.measure.higher_is_better:
        return f"beats {rival} by {percent(abs(outcome.difference))} points {interval}"
    return f"is {percent(abs(outcome.difference))} points {interval} worse than {rival}"


def _against_first(levels: Sequence[Comparison]) -> str:
    """Return which settings differ from the first one, in one sentence."""
    measure, group = levels[0].measure, levels[0].group
    told: list[tuple[Comparison, str]] = []
    for each in sorted(levels, key=place_of_reading):
        label = each.contrast.first
        if not told:  # it stands first in the sentence
            label = named_level(each.contrast, label)
        if each.contrast.shared:
            label += f" ({each.contrast.shared})"
        if is_evident(each) or (len(levels) <= _MOST_NUMBERS and not each.is_same_model):
            label += f" ({told_difference(each)})"
        told.append((each, label))
    name = named_level(levels[0].contrast, levels[0].contrast.second)
    name = f"the {name}" if name == WHOLE_EXPERT else name
    return f"On {measure_text(measure, group)}, {compared_with(name, told)}."


def _cost(
    observations: Observations, swap: Comparison, told: Collection[tuple[Group, Measure]]
) -> Iterator[str]:
    """Yield what the swap loses or gains on each other task, against the better expert there.

    Args:
        observations: of the run.
        swap: what is compared.
        told: what has a sentence of its own.
    """
    models = swap.contrast.first_models
    kinds = [kind for kind in _EXPERTS if kind in observations.run.study.baseline]
    for group, measure in ordered(observations):
        if group != swap.group or (group, measure) in told:
            continue
        sign = 1 if measure.higher_is_better else -1
        scored = []
        for kind in kinds:
            matched = _distinct(tuple(baseline_of(kind, model) for model in models))
            items = observations.items(group, measure)
            block = observations.block(matched, group, measure, items)
            if block is not None:
                scored.append((sign * block.average(), matched))
        if not scored:
            continue
        better = max(scored, key=lambda each: each[0])[1]
        outcome = compare_models(observations, group, measure, (models, better))
        if outcome is not None:
            yield (
                f"{measure_text(measure, group)} {points(outcome.difference)} points "
                f"{interval_text(outcome)} compared with the {better[0].label}"
            )


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
    asked = rivals(observations.run.study)
    tested = sorted(
        (each for each in primary if not each.is_same_model), key=lambda each: _place(each, asked)
    )
    if tested:
        group, measure = next((each.group, each.measure) for each in primary if each in tested)
        first = [each for each in tested if (each.group, each.measure) == (group, measure)]
        yield f"What the data cannot tell: {_noise(first, measure_text(measure, group))}."
    if all(group.task_experts * group.language_experts == 1 for group in observations.groups):
        yield "One training run of each expert was used; another may come out differently."


def _noise(tested: Sequence[Comparison], where: str) -> str:
    """Return which differences are within noise, by the items that they are over."""
    by_items: dict[int, list[Comparison]] = {}
    for each in tested:
        if each.outcome is not None:
            by_items.setdefault(each.outcome.items, []).append(each)
    limits, short = [], []
    for items, some in by_items.items():
        outcomes = [each.outcome for each in some if each.outcome is not None]
        count = f"with {items:,} item{'s' * (items != 1)}"
        names = f" ({listed(list(dict.fromkeys(map(_rival, some))))})" * (len(by_items) > 1)
        if all(is_too_short(outcome, some[0].family) for outcome in outcomes):
            short.append(f"{count}{names}, no difference on {where} can be significant (p < 0.05)")
            continue
        half = percent(plain.median((each.high - each.low) / 2 for each in outcomes))
        if len(by_items) == 1:
            return f"{count}, differences under about {half} points on {where} are within noise"
        limits.append(f"under about {half} points {count}{names}")
    noise = [f"differences on {where} are within noise {listed(limits)}"] if limits else []
    return "; ".join([*noise, *short])


def _distinct(models: tuple[Model, ...]) -> tuple[Model, ...]:
    return models[:1] if len(set(models)) == 1 else models


def _rival(comparison: Comparison) -> str:
    """Return what something is compared with, in words."""
    rival = comparison.contrast.rival
    if rival == "first_setting":
        return "the settings"
    return _with_article(kind_text(str(rival)))


def _with_article(name: str) -> str:
    return name if name.startswith("TIES") else f"the {name}"
