"""Puts a report together from a run. Knows which parts there are; not how they are written."""

from __future__ import annotations

import statistics as plain
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ablations.drawing.canvas import HINT, can_draw
from ablations.drawing.charts import Chart, draw_chart
from ablations.drawing.figure import Drawing
from ablations.drawing.forest import Forest, draw_forest
from ablations.drawing.score_map import ScoreMap, draw_map
from ablations.report.bottom_line import sentences
from ablations.report.charts import charts
from ablations.report.comparisons import Comparer, Comparison, compare_all
from ablations.report.design import (
    Group,
    merge_notes,
    varies_experts,
)
from ablations.report.detail_tables import (
    baselines_table,
    cells_table,
    comparisons_table,
    factor_tables,
    gaps_table,
)
from ablations.report.document import Figure, Report, Table, transposed
from ablations.report.factors import most_draws
from ablations.report.forests import forest
from ablations.report.lead_table import lead_table
from ablations.report.losses import losses_table
from ablations.report.merged import as_merged
from ablations.report.missing import failure_problems
from ablations.report.names import task_name
from ablations.report.observations import Measure, Observations
from ablations.report.primary import primary_problems
from ablations.report.protocol import protocol_notes
from ablations.report.published import reference_table
from ablations.report.readings import listed
from ablations.report.rescored import rescored_table
from ablations.report.score_maps import LayerMap, layer_map, map_figure
from ablations.report.souping import check_same_questions, has_soups, souping_table
from ablations.report.summaries import Summaries
from ablations.report.tables import grid_tables, has_pairs, overview_table, pairs_table
from ablations.report.targets import in_order
from ablations.report.wording import noise_lines
from ablations.runner.problems import evaluation_problems
from ablations.runner.records import Run
from layerswap_method.errors import InputError


def compose(
    run: Run, others: Sequence[Run] = (), *, published: bool = False, draw: bool = True
) -> tuple[Report, tuple[Comparison, ...]]:
    """Return the report of `run` and the comparisons in it.

    Args:
        run: a run with at least one finished cell.
        others: runs of the same protocol, whose merges of several experts stand beside those of
            `run` in the layout of Table 6, and nowhere else.
        published: whether the paper's values stand beside the layouts that it has.
        draw: whether to draw figures, which needs matplotlib; without it they are left out and
            the report says so.

    Raises:
        InputError: for a run without a finished cell, or `others` that asked something else.
    """
    for each in (run, *others):
        if not each.cells:
            raise InputError(_emptiness(each))
    check_same_questions(run, others)
    run, merged = as_merged(run)
    study = run.study
    observations = Observations(run)
    comparer = Comparer(seed=study.evaluate.seed, level=study.evaluate.level)
    summaries = Summaries(observations, comparer)
    comparisons = compare_all(observations, comparer)
    layers = layer_map(summaries)
    figures: tuple[Figure, ...] = ()
    notes = [*_notes(observations, comparisons), *merged]
    if draw and can_draw():
        figures = tuple(_figures(summaries, layers))
    elif draw:
        notes.append(f"Figures are left out: {HINT}.")
    others = tuple(as_merged(other)[0] for other in others)
    several = [summaries, *(Summaries(Observations(other), comparer) for other in others)]
    report = Report(
        name=study.name,
        question=study.question,
        source=study.source,
        problems=_problems(observations),
        bottom_line=tuple(sentences(summaries, comparisons, layers)),
        merges=merge_notes(study, run.head.num_layers),
        lead=(*figures[:1], lead_table(summaries, layers)),
        tables=(*_tables(several, comparisons, published), *_losses(observations)),
        figures=figures[1:],
        details=tuple(_details(observations, comparisons)),
        noise=tuple(noise_lines(comparisons, _medians(summaries), study.evaluate.level)),
        notes=tuple(notes),
        facts=tuple(_facts(run)),
    )
    return report, comparisons


def _problems(observations: Observations) -> tuple[str, ...]:
    run = observations.run
    return (*failure_problems(run), *evaluation_problems(run), *primary_problems(observations))


def _figures(summaries: Summaries, layers: LayerMap | None) -> Iterator[Figure]:
    """Yield the figures, the one that answers first."""
    lead = forest(summaries.observations)
    if layers is not None:
        chart = map_figure(summaries, layers)
        yield _figure(chart, draw_map(chart))
    elif lead is not None:
        yield _figure(lead, draw_forest(lead))
    for lines in charts(summaries):
        yield _figure(lines, draw_chart(lines))


def _figure(chart: Forest | ScoreMap | Chart, drawn: Drawing) -> Figure:
    return Figure(chart.key, chart.title, chart.caption, drawn.images, drawn.panels)


def _tables(
    several: Sequence[Summaries], comparisons: Sequence[Comparison], published: bool
) -> Iterator[Table]:
    summaries = several[0]
    for table in _layouts(several):
        is_wide = table.key in ("pairs", "overview")
        yield transposed(table) if is_wide else table
        reference = reference_table(table.key) if published else None
        if reference is not None:
            yield reference
    yield from factor_tables(summaries, comparisons)
    # Where nothing varies, the answers are about the baselines already.
    against = baselines_table(comparisons) if any(c.contrast.factor for c in comparisons) else None
    if against is not None:
        yield against


def _losses(observations: Observations) -> Iterator[Table]:
    found = losses_table(observations)
    if found is not None:
        yield found


def _details(observations: Observations, comparisons: Sequence[Comparison]) -> Iterator[Table]:
    rescored = rescored_table(observations.run)
    for table in (gaps_table(observations), comparisons_table(comparisons), rescored):
        if table is not None:
            yield table
    yield cells_table(observations)


def _layouts(several: Sequence[Summaries]) -> Iterator[Table]:
    """Yield the layouts that the study asks for, or those that fit it."""
    summaries = several[0]
    study = summaries.observations.run.study
    asked = study.report.tables
    # Of one pair, the table of the first screen has it all.
    several_pairs = has_pairs(summaries.observations)
    if several_pairs and ("pairs" in asked or not asked):
        yield pairs_table(summaries)
    if several_pairs and ("overview" in asked or (not asked and study.baseline)):
        yield overview_table(summaries)
    if "souping" in asked or len(several) > 1 or (not asked and has_soups(several)):
        yield souping_table(several)
    if "parameters" in asked or not asked:
        yield from grid_tables(summaries)


def _medians(summaries: Summaries) -> list[tuple[Group, Measure, int, float]]:
    observations = summaries.observations
    found = []
    for group, measure in in_order(observations):
        items = observations.items(group, measure)
        values = [
            score.value
            for cell in observations.members(group)
            if (score := observations.score(cell, measure)) is not None
        ]
        if items and values:
            found.append((group, measure, len(items), plain.median(values)))
    return found


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    cells = len(run.head.cells)
    yield "cells", f"{cells - len(run.unfinished)} of {cells} finished"
    yield "engine", ", ".join(sorted({cell.backend for cell in run.cells}))
    if run.head.num_layers is not None:
        yield "layers of the model", str(run.head.num_layers)
    evaluate = run.study.evaluate
    yield "dtype of the engine, and so of every score", evaluate.options.dtype
    yield "items per task", "all" if evaluate.limit is None else f"the first {evaluate.limit}"
    seconds = sum(cell.timing_s.get("total", 0.0) for cell in run.cells)
    yield "time in cells", f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
    made = sorted(
        task.provenance["finished"]
        for cell in run.cells
        for task in cell.tasks
        if "finished" in task.provenance
    )
    if made:
        yield "evaluated", " to ".join(dict.fromkeys(_minute(each) for each in (made[0], made[-1])))
    yield "versions", ", ".join(f"{name} {text}" for name, text in run.head.versions.items())


def _notes(observations: Observations, comparisons: Sequence[Comparison]) -> Iterator[str]:
    study = observations.run.study
    yield from protocol_notes(observations.run)
    draws = most_draws(study)
    if draws > 1:
        yield (
            f"Settings that differ by their seed only (up to {draws}) are averaged, and settings "
            "with fewer seeds weigh as much. Intervals and tests do not cover how another seed "
            "would do: the table All cells shows how far the seeds lie apart."
        )
    methods = dict.fromkeys(
        each.outcome.method for each in comparisons if each.outcome and each.outcome.method
    )
    if methods:
        yield (
            f"Tests, all on the same items: {'; '.join(methods)}. Holm's correction is over the "
            "primary comparisons; the others are exploratory and not corrected. Intervals are not "
            "corrected."
        )
    if any(group.task_experts > 1 or group.language_experts > 1 for group in observations.groups):
        over = "pairs" if study.recipe is not None else "training runs"
        yield (
            f"Averages over {over}: intervals and p-values have one uncertainty, over task "
            "experts, language experts and items together. With few experts per role it is large."
        )
        if varies_experts(study):
            yield (
                "Settings with experts of their own are compared place by place: the first expert "
                "of one with the first of the other, and a single expert with each of several."
            )
    else:
        yield (
            "Intervals and tests are over items. Another training run of the same experts may "
            "differ by more."
        )
    shown = dict.fromkeys(measure for _, measure in in_order(observations))
    told = ", ".join(f"{task_name(m.task)} is {m.task}: {m.metric} ({m.filter})" for m in shown)
    yield f"Tasks by their names in lm-eval, with metric and filter: {told}."
    yield "scores.csv has every metric and filter."
    choices = [each.contrast.choice for each in comparisons if each.contrast.choice is not None]
    if choices:
        chosen = ["which setting is the best"] * any(each.settings > 1 for each in choices)
        chosen += ["which expert is better"] * any(each.experts > 1 for each in choices)
        told = listed(chosen)
        yield (
            f"{told[:1].upper()}{told[1:]} was chosen on one half of the items and tested on the "
            f"other half. The halves are drawn at random with seed {study.evaluate.seed}, so the "
            "same run gives the same report."
        )


def _minute(when: str) -> str:
    """Return a time such as 2026-11-22T05:48:14+00:00 to the minute."""
    moment = datetime.fromisoformat(when).astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _emptiness(run: Run) -> str:
    cells = len(run.head.cells)
    told = "its only cell is not" if cells == 1 else f"none of its {cells} cells is"
    text = f"{run.path}: {told} finished"
    if run.failures:
        first = run.failures[0]
        reason = (first.error.splitlines() or [""])[0]
        failed = (
            "one failed" if len(run.failures) == 1 else f"{len(run.failures)} failed, the first"
        )
        text += f"; {failed} ({first.label}) with: {reason}"
    return f"{text}; layerswap run {run.study.name} runs them"
