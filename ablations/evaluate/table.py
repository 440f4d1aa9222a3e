"""Scores of several models side by side, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablations.drawing.text_table import text_table
from ablations.runner.records import Run
from ablations.scoring.records import Evaluation, TaskScore
from ablations.statistics.as_text import with_interval


def format_score(score: TaskScore) -> str:
    """Return ``62.3 [56.7, 67.6]`` (percent) or, for what is no share, the plain number."""
    return with_interval(score.value, score.interval, score.is_share)


def render_table(
    evaluations: Mapping[str, Evaluation],
    tasks: Sequence[str],
    *,
    strip_prefix: str = "",
    width: int = 100,
) -> str:
    """Return a text table: a row per evaluation, a column per task, the first metric of each.

    Columns that do not fit in `width` go into further blocks below, each with the row names.

    Args:
        evaluations: row name to evaluation.
        tasks: the columns, in order.
        strip_prefix: what to leave out at the beginning of task names.
        width: characters a line may have; a block holds at least one column.

    Raises:
        InputError: when an evaluation lacks one of the tasks.
    """
    scores = [[evaluation.score(task) for task in tasks] for evaluation in evaluations.values()]
    heads = [
        f"{task.removeprefix(strip_prefix)}\n{_asked(column)}"
        for task, column in zip(tasks, zip(*scores, strict=True), strict=True)
    ]
    rows = [[name, *map(format_score, row)] for name, row in zip(evaluations, scores, strict=True)]
    return text_table(["", *heads], rows, width=width)


def render_run(run: Run, names: Mapping[str, str], width: int = 100) -> str:
    """Return the table of a run, a row for every finished cell; percent where a metric is a share.

    Args:
        run: whose cells have the same tasks.
        names: label of a cell -> its row name; cells without one are left out.
        width: characters a line may have.
    """
    cells = {names[cell.label]: cell.evaluation() for cell in run.cells if cell.label in names}
    tasks = list(dict.fromkeys(score.task for each in cells.values() for score in each.scores))
    (first, *others) = {task.partition("_")[0] for task in tasks}
    return render_table(cells, tasks, strip_prefix="" if others else f"{first}_", width=width)


def _asked(scores: Sequence[TaskScore]) -> str:
    metrics = "/".join(dict.fromkeys(score.metric for score in scores))
    counts = sorted({score.n for score in scores})
    return f"{metrics}, n={'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"
