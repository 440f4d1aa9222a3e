"""The scores of a cell as text, when it has ended."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping

from ablations.machine.names import printable
from ablations.machine.status_line import above
from ablations.scoring.records import Evaluation
from ablations.statistics.as_text import with_interval
from ablations.study.cells import Cell
from ablations.study.labels import task_name

_WIDTH = 100


def show_scores(
    cell: Cell, evaluations: Mapping[str, Evaluation], metric: str | None = None
) -> None:
    """Print the scores of a cell on stdout.

    Args:
        cell: that has ended.
        evaluations: task -> its evaluation; a task of the cell that is not in it has failed.
        metric: what to show of a task that has it; the first one of the others.
    """
    parts = []
    for task in cell.records:
        shown = "failed"
        if task in evaluations:
            scores = [score for score in evaluations[task].scores if score.task == task]
            score = next((each for each in scores if each.metric == metric), scores[0])
            shown = with_interval(score.value, score.interval, score.is_share)
        parts.append(f"{task_name(task)}: {shown}".replace(" ", "\N{NO-BREAK SPACE}"))
    text = textwrap.fill(f"{cell.label}  {'; '.join(parts)}", _WIDTH, subsequent_indent="  ")
    text = printable(text.replace("\N{NO-BREAK SPACE}", " "))
    if not above(text, sys.stdout):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
