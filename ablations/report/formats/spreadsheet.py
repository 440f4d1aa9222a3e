"""Scores and comparisons as CSV with full precision, for other programs. Knows columns only."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from ablations.report.comparisons import Comparison
from ablations.report.design import describe_value
from ablations.report.wording import verdict
from ablations.runner.records import CellRecord, Run

_HEAD = ("weights", "label", "state", "kind", "task_expert", "language_expert", "language")
_SCORE = (
    *("task", "metric", "filter", "value", "low", "high", "level", "interval"),
    *("stderr", "n", "higher_is_better", "backend", "reason"),
)


def scores_csv(run: Run) -> str:
    """Return one row per cell and score, in [0, 1] for shares; one per cell without a record."""
    varied = sorted({name for cell in run.cells for name in cell.values})
    rows: list[list[object]] = []
    done = {cell.label: cell for cell in run.cells}
    reasons = {failure.label: failure.error for failure in run.failures}
    for planned in run.head.cells:
        cell = done.get(planned.label)
        if cell is None:
            state = "failed" if planned.label in reasons else "not run"
            empty = [""] * (len(_HEAD) - 3 + len(varied) + len(_SCORE) - 1)
            rows.append(
                [planned.weights_key, planned.label, state, *empty, reasons.get(planned.label, "")]
            )
            continue
        rows += _score_rows(cell, varied)
    return _written([*_HEAD, *varied, *_SCORE], rows)


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return one row per comparison, differences in [-1, 1]."""
    columns = (
        *("task", "metric", "filter", "language", "factor", "first", "second", "difference"),
        *("low", "high", "p", "p_holm", "family", "items", "cells", "method", "reading"),
    )
    rows: list[list[object]] = []
    for each in comparisons:
        measure, contrast, outcome = each.measure, each.contrast, each.outcome
        head = [measure.task, measure.metric, measure.filter, each.group.language or ""]
        head += [contrast.factor, contrast.first, contrast.second]
        numbers: list[object] = [""] * 9
        if outcome is not None:
            tested = not each.is_same_model
            numbers = [
                outcome.difference,
                outcome.low if tested else "",
                outcome.high if tested else "",
                *("" if value is None else value for value in (outcome.p, each.p_holm)),
                each.family if tested else "",
                outcome.items,
                outcome.cells,
                outcome.method,
            ]
        rows.append([*head, *numbers, verdict(each)])
    return _written(columns, rows)


def _score_rows(cell: CellRecord, varied: Sequence[str]) -> list[list[object]]:
    head = [cell.weights_key, cell.label, "done", cell.kind]
    head += [cell.experts.get("task", ""), cell.experts.get("language", ""), cell.language or ""]
    values = [describe_value(cell.values[name]) if name in cell.values else "" for name in varied]
    rows: list[list[object]] = []
    for score in cell.scores:
        interval = score.interval
        ends: list[object] = ["", "", "", ""]
        if interval is not None:
            ends = [interval.low, interval.high, interval.level, interval.method]
        stderr = "" if score.stderr is None else score.stderr
        direction = str(score.higher_is_better).lower()
        rows.append(
            [
                *(*head, *values, score.task, score.metric, score.filter, score.value, *ends),
                *(stderr, score.n, direction, cell.backend, ""),
            ]
        )
    return rows


def _written(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    # repr of a float is the shortest text that reads back as the same number.
    writer.writerows([[repr(v) if isinstance(v, float) else v for v in row] for row in rows])
    return buffer.getvalue()
