"""Scores and comparisons as CSV with full precision, for other programs. Knows columns only."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ablations.report.comparisons import Comparison
from ablations.report.design import describe_value
from ablations.report.wording import verdict
from ablations.runner.records import CellRecord, Run

_HEAD = ("weights", "label", "state", "kind", "task_expert", "language_expert", "language")
_SCORE = (
    *("task", "metric", "filter", "value", "low", "high", "level", "interval"),
    *("stderr", "n", "higher_is_better", "backend", "reason"),
)
_COMPARISON = (
    *("task", "metric", "filter", "language", "factor", "first", "second", "difference"),
    *(
        "low",
        "high",
        "p",
        "p_holm",
        "family",
        "items",
        "cells",
        "method",
        "primary",
        "chosen_on",
        "reading",
    ),
)
_Row = Mapping[str, object]


def scores_csv(run: Run) -> str:
    """Return one row per cell and score, in [0, 1] for shares; one per cell without a record."""
    done = {cell.label: cell for cell in run.cells}
    reasons = {failure.label: failure.error for failure in run.failures}
    rows: list[_Row] = []
    for planned in run.head.cells:
        row = {"weights": planned.weights_key, "label": planned.label}
        if planned.label in done:
            rows += _score_rows(row, done[planned.label])
        else:
            reason = reasons.get(planned.label)
            state = "not run" if reason is None else "failed"
            rows.append({**row, "state": state, "reason": reason})
    varied = sorted({name for cell in run.cells for name in cell.values})
    return _written((*_HEAD, *varied, *_SCORE), rows)


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
    """Return one row per comparison, differences in [-1, 1]."""
    return _written(_COMPARISON, map(_comparison_row, comparisons))


def _comparison_row(comparison: Comparison) -> _Row:
    contrast = comparison.contrast
    known = vars(comparison.measure) | vars(contrast) | {"chosen_on": contrast.chosen_on}
    known["language"] = comparison.group.language
    known["primary"] = str(comparison.is_primary).lower()
    if comparison.outcome is not None:
        known |= vars(comparison.outcome) | {"p_holm": comparison.p_holm}
        known |= {"family": comparison.family}
        if comparison.is_same_model:
            known |= dict.fromkeys(("low", "high", "family"))
    return {**known, "reading": verdict(comparison)}


def _score_rows(row: _Row, cell: CellRecord) -> Iterator[_Row]:
    values = {name: describe_value(value) for name, value in cell.values.items()}
    head = {**row, "state": "done", "kind": cell.kind, "language": cell.language, **values}
    head |= {f"{role}_expert": name for role, name in cell.experts.items()}
    for score in cell.scores:
        interval = {} if score.interval is None else score.interval.model_dump()
        yield {
            **head,
            **interval,
            **score.model_dump(exclude={"interval"}),
            "interval": interval.get("method"),
            "higher_is_better": str(score.higher_is_better).lower(),
            "backend": cell.backend,
        }


def _written(columns: Sequence[str], rows: Iterable[_Row]) -> str:
    buffer = io.StringIO()
    # A float is written as the shortest text that reads back as the same number.
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()
