"""The work of a worker: tasks of cells, and the job that they are part of."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ablations.requests.resolve import ResolvedTasks
from ablations.runs import records
from ablations.runs.records import Failure, TaskRecord
from ablations.scoring.evaluation import Evaluation
from ablations.study.cells import PlannedCell
from layerswap_method.errors import LayerSwapError


class Work(NamedTuple):
    """One task of a cell, that is one record."""

    cell: PlannedCell
    task: str

    @property
    def key(self) -> str:
        """The record's key."""
        return self.cell.record_keys[self.task]

    @property
    def resolved(self) -> ResolvedTasks:
        """The task alone, as the plan of the study has read it."""
        return self.cell.resolved.only(self.task)


class ModelFailed(LayerSwapError):
    """Raised by an engine that has no model: its experts, merge or load failed."""


class Engine(Protocol):
    """The interface by which a worker evaluates; `runner.study_engine.StudyEngine` has it."""

    def evaluate(self, work: Work) -> tuple[Evaluation, dict[str, Any]]:
        """Return the scores of a task with its samples, and their provenance.

        Raises:
            ModelFailed: where there is no model to ask.
            LayerSwapError: where the evaluation fails.
        """

    def close(self) -> None:
        """End what was started."""


@dataclass(frozen=True)
class Job:
    """The part of a call that all its workers get; picklable."""

    out: Path
    """The run folder."""

    cells: Sequence[PlannedCell]
    make_engine: Callable[[], Engine]
    """Called by each worker, once."""

    call: str
    """Name of the call: what failed in it is not tried again in it."""

    protocol_key: str = ""
    """That of the plan."""

    def works(self) -> dict[str, Work]:
        """Return record key -> work; cells of equal weights have the same keys."""
        works: dict[str, Work] = {}
        for cell in self.cells:
            for task, key in cell.record_keys.items():
                works.setdefault(key, Work(cell, task))
        return works

    def outcome(self, key: str) -> TaskRecord | Failure | None:
        """Return a record, or why this call has none; None while neither is there."""
        if (record := records.find_record(self.out, key)) is not None:
            return record
        failure = records.read_failure(self.out, key)
        return failure if failure is not None and failure.call == self.call else None


def now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
