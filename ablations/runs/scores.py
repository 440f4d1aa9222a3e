"""A run folder as a table, one row per score, and checks of its observations, one row per item.

Everything in a report is made from these two, and from the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd

from ablations.runs.models import Model, cell_names, models_of
from ablations.runs.observations import SCORE, head_of
from ablations.runs.records import Run, TaskRecord, read_failure
from layerswap_method.errors import InputError, LayerSwapError, nearest


def read_scores(run: Run, models: Sequence[Model] | None = None) -> pd.DataFrame:
    """Return a row for every score of every cell, and one for each task without a record.

    ``state`` is ``done``, ``failed`` or ``missing``; the reason of a failure is in ``reason``.
    """
    names = cell_names(run.head)
    finished = {cell.label: cell for cell in run.cells}
    rows: list[dict[str, Any]] = []
    for model in models_of(run.head) if models is None else models:
        for planned in run.head.cells:
            if planned.label not in model.cells:
                continue
            head = head_of(model, planned, names)
            cell = finished.get(planned.label)
            records = {} if cell is None else {record.task: record for record in cell.tasks}
            for task, key in planned.records.items():
                record = records.get(task)
                if record is not None:
                    rows += [{**head, **score} for score in _scores(record)]
                    continue
                failure = read_failure(run.path, key)
                reason = "" if failure is None else (failure.error.splitlines() or [""])[0]
                state = "missing" if failure is None else "failed"
                rows.append({**head, "task": task, "state": state, "reason": reason})
    return pd.DataFrame(rows)


def shown_scores(scores: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return one row per task: the metric and filter that its tables show.

    Args:
        scores: from `read_scores`.
        metric: what to show of tasks that have it; the first metric of the others.
    """
    done = scores[scores["state"] == "done"]
    done = done.assign(is_share=done.groupby([*SCORE])["is_share"].transform("all"))
    wanted = done[done["metric"] == metric] if metric is not None else done.iloc[:0]
    columns = [*SCORE, "higher_is_better", "is_share", "floor", "floor_name"]
    return pd.concat([wanted, done])[columns].drop_duplicates("task").set_index("task", drop=False)


@contextmanager
def as_input_errors() -> Iterator[None]:
    """Raise what is wrong with the files of a run, whose folder the user named, as `InputError`."""
    try:
        yield
    except LayerSwapError as error:
        raise InputError(error.message) from error


def check_same_content(data: pd.DataFrame) -> None:
    """Check that all models were evaluated on the same text, item by item.

    Raises:
        InputError: naming the task and two models.
    """
    for task, part in data.groupby("task", sort=False):
        by_item = part.groupby("item")["content"].nunique()
        if (by_item <= 1).all():
            continue
        item = by_item[by_item > 1].index[0]
        first = part[part["item"] == item].drop_duplicates("content")["model"].tolist()
        raise InputError(
            f"{first[0]} and {first[1]} have different items or prompts of {task} (the first is "
            f"item {item}); evaluate both with the same --limit, data and task files"
        )


def check_names(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Check that every name is known.

    Raises:
        InputError: with the nearest valid name.
    """
    for name in names:
        if name not in known:
            raise InputError(f"{what} {name!r} is not in the run{nearest(name, known)}")


def _scores(record: TaskRecord) -> Iterator[dict[str, Any]]:
    for score in record.evaluation.scores:
        yield {
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
            "backend": record.evaluation.backend,
            "reason": "",
        }
