"""The tasks of a run as its report shows them: their metric, their order, the values of items.

They are derived once; comparisons and tables of scores are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ablations.report.contrasts import ordered_tasks, primary_tasks
from ablations.runs.observations import CELL, SCORE
from ablations.runs.results import Results
from ablations.runs.score_table import shown_rows
from ablations.tasks.names import task_language


class ShownTasks(NamedTuple):
    """The tasks of a run as its report shows them."""

    metrics: pd.DataFrame
    """Row by task: the metric and filter that are shown; see `shown_rows`."""

    matrices: Mapping[str, pd.DataFrame]
    """Task -> the values of its items; see `matrix_of`."""

    languages: Sequence[str]
    """The target languages of the run in their order; a single empty one where it has none."""

    by_language: Mapping[str, Sequence[str]]
    """Language -> the tasks of its models in the order of tables; the empty one has all tasks."""

    primary: Mapping[str, Sequence[str]]
    """Language -> the primary ones among its tasks."""

    task_languages: Mapping[str, str]
    """Task -> code of its own language; see `task_language`."""


def shown_tasks(results: Results) -> ShownTasks:
    """Return the tasks of results as a report shows them."""
    study, scores = results.study, results.scores
    shown = shown_rows(scores, study.report.metric)
    languages = [code for code in dict.fromkeys(scores["language"]) if code] or [""]
    of_tasks = {task: task_language(task, results.task_languages) for task in {*scores["task"]}}
    by_language, primary = {}, {}
    for code in dict.fromkeys((*languages, "")):
        rows = scores[scores["language"] == code] if code else scores
        tasks = list(dict.fromkeys(rows["task"]))
        primary[code] = primary_tasks(study, tasks, code, of_tasks)
        by_language[code] = ordered_tasks(tasks, primary[code], of_tasks)
    return ShownTasks(
        metrics=shown,
        matrices={task: matrix_of(results.observations, shown.loc[task]) for task in shown.index},
        languages=languages,
        by_language=by_language,
        primary=primary,
        task_languages=of_tasks,
    )


def matrix_of(data: pd.DataFrame, score: Mapping[str, Any]) -> pd.DataFrame:
    """Return the values of one metric of one task: one row per cell, one column per item.

    The index has the columns of `CELL`, ``language`` and ``weights``. NaN: the cell lacks the item.
    """
    part = data
    for name in SCORE:
        part = part[part[name] == score[name]]
    return part.pivot(index=[*CELL, "language", "weights"], columns="item", values="value")
