"""The scores of a run: a table with a row for each score of a cell, done, failed or missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ablations.runs.observations import SCORE, head_of
from ablations.runs.records import CellRecord, Failure, RunFile
from ablations.scoring.evaluation import TaskScore, shown_metric_position
from layerswap_method.errors import InputError, nearest_of

VALUES = (
    "value",
    "low",
    "high",
    "stderr",
    "n",
    "higher_is_better",
    "is_share",
    "floor",
    "floor_name",
)
"""Columns of a score itself: its value, its interval, and what they mean."""

SCORES = (
    "model",
    "kind",
    "cell",
    "weights",
    "base",
    "task_expert",
    "language_expert",
    "seed",
    "language",
    "task",
    "state",
    "metric",
    "filter",
    *VALUES,
    "backend",
    "reason",
)
"""Columns of the scores, in this order whichever cell comes first and whether or not it is done."""

_NUMBERS = ("value", "low", "high", "stderr", "floor")


def table_of_scores(
    head: RunFile, cells: Sequence[CellRecord], failures: Mapping[str, Failure]
) -> pd.DataFrame:
    """Return a row for every score of every cell, and one for each task without a record.

    ``state`` is ``done``, ``failed`` or ``missing``; the reason of a failure is in ``reason``. The
    columns are `SCORES`.

    Args:
        head: the plan of a run.
        cells: its cells that have a record.
        failures: key of a record that is not there -> why.
    """
    evaluated = {cell.label: cell.task_records for cell in cells}
    rows: list[dict[str, Any]] = []
    for model in head.models:
        for cell in head.cells:
            if cell.label not in model.cells:
                continue
            facts = head_of(model, cell)
            records = {record.task: record for record in evaluated.get(cell.label, ())}
            for task, key in cell.record_keys.items():
                record = records.get(task)
                if record is not None:
                    evaluation = record.evaluation
                    rows += score_rows(facts, evaluation.scores, evaluation.backend)
                    continue
                failure = failures.get(key)
                reason = "" if failure is None else (failure.error.splitlines() or [""])[0]
                state = "missing" if failure is None else "failed"
                rows.append({**facts, "task": task, "state": state, "reason": reason})
    return scores_frame(rows)


def scores_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table of scores."""
    # pandas makes a column of objects of None alone, such as a floor where no task has one.
    return pd.DataFrame(rows, columns=SCORES).astype(dict.fromkeys(_NUMBERS, "float64"))


def shown_rows(scores: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return one row per task, of the metric and filter that tables show (`shown_metric_position`).

    Args:
        scores: from `table_of_scores`.
        metric: shown of tasks that have it; of the others their first metric is.
    """
    done = scores[scores["state"] == "done"]
    done = done.assign(is_share=done.groupby([*SCORE])["is_share"].transform("all"))
    columns = [*SCORE, "higher_is_better", "is_share", "floor", "floor_name"]
    return row_of_each_task(done, metric)[columns].set_index("task", drop=False)


def row_of_each_task(scores: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """Return of every task the row that is shown, by `shown_metric_position`, in their order."""
    tasks = scores.groupby("task", sort=False).indices.values()
    rows = (rows[shown_metric_position([*scores["metric"].iloc[rows]], metric)] for rows in tasks)
    return scores.iloc[sorted(rows)]


def check_names(names: Sequence[str], valid_names: Sequence[str], setting: str) -> None:
    """Check that every name that a setting gives is one of the run.

    Raises:
        InputError: with the nearest valid name, and all of them.
    """
    for name in names:
        if name not in valid_names:
            raise InputError(f"{setting} {name!r} is not in the run{nearest_of(name, valid_names)}")


def score_rows(
    head: Mapping[str, str], scores: Sequence[TaskScore], backend: str
) -> Iterator[dict[str, Any]]:
    """Yield a row of `table_of_scores` for each score of a cell, which `head` describes."""
    for score in scores:
        yield {
            **head,
            "task": score.task,
            "state": "done",
            "metric": score.metric,
            "filter": score.filter,
            "value": score.value,
            "low": None if score.interval is None else score.interval.low,
            "high": None if score.interval is None else score.interval.high,
            "stderr": score.stderr,
            "n": score.n,
            "higher_is_better": score.higher_is_better,
            "is_share": score.is_share,
            "floor": None if score.floor is None else score.floor.score,
            "floor_name": "" if score.floor is None else score.floor.name,
            "backend": backend,
            "reason": "",
        }
