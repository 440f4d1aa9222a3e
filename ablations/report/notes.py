"""Notes to the numbers: problems, how they were computed, where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from ablations.runs.changed_tasks import changed_tasks
from ablations.runs.evaluation_problems import evaluation_problems
from ablations.runs.records import CellRecord
from ablations.runs.run import Run
from ablations.scoring.evaluation import EvaluationSettings, shown_score
from ablations.scoring.observed import (
    LANGUAGE_FIDELITY,
    TRUNCATED,
    TRUNCATION_NOTED,
    join_notes,
)
from ablations.statistics.as_text import number, percent
from ablations.statistics.means_and_p_values import alpha_of
from ablations.study.wording import describe_setting, merge_note
from ablations.tasks.names import task_name
from layerswap_method.errors import nearest

_SHOWN_CELLS = 2


def run_problems(run: Run, scores: pd.DataFrame) -> list[str]:
    """Return the problems of the evaluation: changed and broken tasks, failures, missing results.

    And a metric that the study's report names and no task has.
    """
    lines, metric = list(changed_tasks(run)), run.study.report.metric
    metrics = sorted({*scores["metric"].dropna()})
    if metric is not None and metric not in metrics and (scores["state"] == "done").all():
        lines.append(
            f"report.metric: {metric!r} is not in the run{nearest(metric, metrics)}. Each task is "
            "shown by its first metric."
        )
    failed = scores[scores["state"] == "failed"]
    for (task, reason), part in failed.groupby(["task", "reason"], sort=False):
        cells_expected = scores[scores["task"] == task]["cell"].nunique()
        cells = part["cell"].nunique()
        where = f"in {cells} of {cells_expected} cells (the first is {part['cell'].iloc[0]})"
        if cells == cells_expected > 1:
            where = f"in all {cells_expected} cells"
        lines.append(f"{task} failed {where}: {reason.rstrip('.')}. The same command tries again.")
    results = scores.drop_duplicates(["cell", "task", "language"])
    missing = results[results["state"] != "done"]
    if len(missing):
        finished_tasks = {*results[results["state"] == "done"]["task"]}
        tasks = [task for task in dict.fromkeys(missing["task"]) if task not in finished_tasks]
        whole = f", all of {' and '.join(map(task_name, tasks))} among them" if tasks else ""
        lines.append(
            f"Preliminary: {len(missing)} of {len(results)} results (a task of a cell) are "
            f"missing{whole}."
        )
    return [*lines, *evaluation_problems(run)]


def notes(run: Run, frame: pd.DataFrame) -> list[str]:
    """Return the notes of a report.

    Args:
        run: whose records are read.
        frame: its comparisons.
    """
    study = run.study
    lines = [merge_note(study, run.head.num_layers)]
    for model in run.models:
        if model.same:
            names = "; ".join(dict.fromkeys(describe_setting(setting) for setting in model.same))
            lines.append(f"The same weights as {model.label}, shown once: {names}.")
    lines += join_notes((*run.head.notes, *record_notes(run)))
    if any(score.metric == LANGUAGE_FIDELITY for cell in run.cells for score in cell.scores):
        lines.append(
            "The table Cells has, for each generation task, the share of answers in the language "
            f"they should be in ({LANGUAGE_FIDELITY}) and of those cut off ({TRUNCATED})."
        )
    if frame["p"].notna().any():
        lines += _methods(run, frame)
    lines.append(
        "A score is the mean over the cells and items of a model. Observations, one row per item, "
        "are in observations.parquet, and the comparisons in comparisons.parquet."
    )
    return [line for line in lines if line]


def facts(run: Run) -> dict[str, str]:
    """Return where the numbers are from: cells, engine, versions."""
    cells = len(run.head.cells)
    evaluate = run.study.evaluate
    texts = {
        "source of the question": run.study.source,
        "cells": f"{cells - len(run.unfinished)} of {cells} finished",
        "engine": ", ".join(sorted({cell.backend for cell in run.cells})),
        "layers of the model": "" if run.head.num_layers is None else str(run.head.num_layers),
        "dtype of the engine": evaluate.options.dtype,
        "items per task": items_text(evaluate),
        "in place of the tasks' own settings": evaluate.overrides_text,
        "versions": ", ".join(f"{name} {text}" for name, text in run.head.versions.items()),
    }
    return {name: text for name, text in texts.items() if text}


def items_text(evaluate: EvaluationSettings) -> str:
    """Return which items of a task were answered."""
    of = " of those listed in run.json" if evaluate.items else ""
    return f"all{of}" if evaluate.limit is None else f"the first {evaluate.limit}{of}"


def _methods(run: Run, frame: pd.DataFrame) -> Iterator[str]:
    margin, alpha = run.study.report.margin, alpha_of(run.study.evaluate.level)
    yield (
        "Differences are over the same items. Their variance has a part for task experts, one for "
        "language experts, one for seeds and one for items; p and interval are Student's t with "
        "Satterthwaite's degrees of freedom. Two single cells have the exact test of McNemar and "
        "Tango's interval. Experts that both sides have are paired by name; of others the parts "
        "add up. A role with one expert adds no part: another training run may differ by more."
    )
    yield (
        f"Better, worse: p below {alpha:g}, of primary comparisons corrected by Holm's method over "
        f"all of them. No relevant difference: both one-sided tests at {alpha:g} inside "
        f"±{margin:g} points, corrected likewise. Cannot tell: neither."
    )
    if (frame["clusters"] > 0).any():
        yield (
            "Means over languages or bases: Student's t with their number. They say what to expect "
            "of another language or base only if these were drawn from the same kind."
        )


def record_notes(run: Run) -> Iterator[str]:
    """Yield the notes on the scores: tasks skipped, answers cut off, repeats, notes of records."""
    yield from _by_cells(
        run, lambda cell: [f"{task}: skipped: {reason}" for task, reason in cell.skipped.items()]
    )
    yield from _by_cells(run, lambda cell: list(cell.notes))
    scores = [(cell, score) for cell in run.cells for score in cell.scores]
    for task in dict.fromkeys(score.task for _, score in scores):
        truncated = [
            (score.value, cell.label)
            for cell, score in scores
            if (score.task, score.metric) == (task, TRUNCATED)
        ]
        share, label = max(truncated, default=(0.0, ""))
        if share > TRUNCATION_NOTED:
            part = f"{percent(share)} % of the answers"
            if len(run.cells) > 1:
                part = f"up to {part} of a cell ({label})"
            yield (
                f"{task}: {part} were cut off at the token limit: its score may be too low by that "
                "much."
            )
        task_scores = [score for _, score in scores if score.task == task]
        first = shown_score(task_scores, run.study.report.metric)
        if first.repeats > 1:
            shown = [
                score
                for score in task_scores
                if (score.metric, score.filter) == (first.metric, first.filter)
            ]
            deviation = max(score.deviation or 0.0 for score in shown)
            is_share = all(score.is_share for score in shown)
            yield (
                f"{task}: scores are the mean of {first.repeats} samples of every item; over them "
                f"the score of a cell has a standard deviation of up to "
                f"{number(deviation, is_share)}."
            )


def _by_cells(run: Run, read: Callable[[CellRecord], list[str]]) -> Iterator[str]:
    """Yield every note with the cells that have it, or without where all do."""
    labels_of: dict[str, list[str]] = {}
    for cell in run.cells:
        for note in read(cell):
            labels_of.setdefault(note, []).append(cell.label)
    for note, labels in labels_of.items():
        if len(labels) == len(run.cells):
            yield note
            continue
        cells = "; ".join(labels[:_SHOWN_CELLS])
        if len(labels) > _SHOWN_CELLS:
            cells += f" and {len(labels) - _SHOWN_CELLS} more"
        yield f"{note} (cells {cells})"
