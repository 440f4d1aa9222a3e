"""A line for each cell as it is finished: its scores by task."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

from ablations.machine.names import printable
from ablations.machine.status_line import above
from ablations.runner.records import RunFile
from ablations.scoring.records import Evaluation
from ablations.statistics.as_text import with_interval
from ablations.study.cells import Cell
from layerswap_method.errors import InputError

CellNames = Callable[[RunFile], Mapping[str, str]]
"""Returns label of a cell -> what to call it."""

_SCORE = len("100.0 [98.7, 100.0]")
_ABREAST = 3
"""Columns of scores for which labels make room."""


def named(cells: Sequence[Cell], names: Mapping[str, str]) -> list[Cell]:
    """Return cells by other names: label -> name; those that it lacks keep their label."""
    return [dataclasses.replace(cell, label=names.get(cell.label, cell.label)) for cell in cells]


class CellLines:
    """Prints the scores of cells, aligned below one head with the names of the tasks."""

    def __init__(self, cells: Sequence[Cell], metric: str | None = None, width: int = 100):
        """Print nothing yet.

        Args:
            cells: all that may be printed, for the columns.
            metric: what to show of a task that has it; the first one of the others.
            width: characters of a line.
        """
        self._metric = metric
        self._tasks = list(dict.fromkeys(task for cell in cells for task in cell.score_keys))
        names = _short(self._tasks)
        self._column = max(_SCORE, *map(len, names)) + 2
        room = width - self._column * min(len(names), _ABREAST)
        self._label = max(min(max(len(cell.label) for cell in cells), room), len("cell"))
        self._abreast = max(1, (width - self._label) // self._column)
        self._head: str | None = self._line("cell", names)

    def show(self, cell: Cell, evaluations: Mapping[str, Evaluation]) -> None:
        """Print the line of a cell on stdout.

        Args:
            cell: that has ended.
            evaluations: task -> its evaluation; a task of the cell that is not in it has failed.
        """
        scores = [
            "" if task not in cell.score_keys else self._score(task, evaluations.get(task))
            for task in self._tasks
        ]
        line = self._line(cell.label, scores)
        text = line if self._head is None else f"{self._head}\n{line}"
        self._head = None
        text = printable(text)
        if not above(text, sys.stdout):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def _score(self, task: str, evaluation: Evaluation | None) -> str:
        if evaluation is None:
            return "failed"
        score = evaluation.score(task)
        if self._metric is not None:
            try:
                score = evaluation.score(task, self._metric)
            except InputError:  # the metric of other tasks
                score = evaluation.score(task)
        return with_interval(score.value, score.interval, score.is_share)

    def _line(self, label: str, entries: Sequence[str]) -> str:
        """Return a line; what does not fit goes below, in the same columns."""
        parts = [
            "".join(f"{entry:>{self._column}}" for entry in entries[at : at + self._abreast])
            for at in range(0, len(entries), self._abreast)
        ]
        first = [] if len(label) <= self._label else [label]
        start = "" if first else label
        lines = [f"{start if not at else '':{self._label}}{part}" for at, part in enumerate(parts)]
        return "\n".join(line.rstrip() for line in [*first, *lines])


def _short(tasks: Sequence[str]) -> list[str]:
    """Return the names of tasks without a first word that all of them have."""
    first = {task.partition("_")[0] for task in tasks}
    if len(first) > 1 or not all("_" in task for task in tasks):
        return list(tasks)
    return [task.partition("_")[2] for task in tasks]
