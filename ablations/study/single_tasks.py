"""The tasks of cells, one by one, and whether their data is there. Knows cells; reads no expert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from ablations.engines.task_loading import Choice, check_data, check_tasks
from ablations.scoring.records import EvaluationRequest
from ablations.study.cells import Cell


def check_data_of(cells: Iterable[Cell], is_finished: Callable[[str], bool]) -> None:
    """Load the data of every task that has a record to come, once.

    Raises:
        InputError: with every problem.
        LayerSwapError: for data on a hub that cannot be asked.
    """
    check_data(
        {
            task: cell.request.model_copy(update={"tasks": (task,)})
            for cell in cells
            for task, key in cell.score_keys.items()
            if not is_finished(key)
        }.values()
    )


def with_single_tasks(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Yield the cells with groups and tags of their requests taken apart: a task has a record."""
    known: dict[EvaluationRequest, Choice] = {}
    for cell in cells:
        if cell.request not in known:
            known[cell.request] = check_tasks(cell.request)
        choice = known[cell.request]
        request = cell.request.model_copy(update={"tasks": choice.asked})
        yield dataclasses.replace(cell, request=request, skipped=choice.skipped)
