"""Progress and results of a call's cells, read from the run folder and logged as they end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ablations.machine.progress import Step, tell
from ablations.runner import records
from ablations.runner.work import Job
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell

logger = logging.getLogger(__name__)

ShowCell = Callable[[Cell, Mapping[str, Evaluation]], None]
"""Shows a cell that has ended now, with the evaluations that it has, by task."""


@dataclass
class Summary:
    """What a call has done."""

    evaluated: list[str] = field(default_factory=list)
    """Labels of cells that were finished now (those of equal weights counted each)."""

    before: list[str] = field(default_factory=list)
    """Labels of cells that were finished before, or by another runner meanwhile."""

    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""


class Board:
    """Says what workers have written since it looked last."""

    def __init__(self, job: Job, shows: Sequence[ShowCell] = ()):
        """Look for the first time; say nothing of what is finished.

        Args:
            job: whose cells they are.
            shows: each is called for every cell that has ended now.
        """
        self._job = job
        self._shows = shows
        self._models = job.models()
        self._items = {key: item for items in self._models.values() for key, item in items.items()}
        self._left = {key for key in self._items if not records.is_finished(job.out, key)}
        self._now = set[str]()
        for file in (records.record_file(job.out, key) for key in self._left):
            if file.is_file():
                logger.warning("%s is damaged; the task is scored again", file)
        self._tell()

    @property
    def is_done(self) -> bool:
        """Whether there is a record, or a failure of this call, for everything."""
        return not self._left

    def look(self) -> None:
        """Say what has ended since, and show the cells of models that have."""
        ended = set()
        for key in sorted(self._left & self._on_disk()):
            item, error = self._items[key], self._error(key)
            if error is not None:
                logger.warning("  %s: %s failed: %s", item.label, item.task, error)
            elif (record := self._record(key)) is not None:
                if record.provenance.get("call") == self._job.call:
                    self._now.add(key)
                total = record.timing_s["total"]
                logger.info("  %s: %s evaluated in %.1f s", item.label, item.task, total)
            else:
                continue
            ended.add(key)
        if ended:
            self._left -= ended
            self._tell()
            for weights_key, items in self._models.items():
                if ended & items.keys() and not self._left & items.keys():
                    self._show(weights_key)

    def summary(self) -> Summary:
        """Return the outcome of every cell, read from the run folder."""
        errors = {key: error for key in self._items if (error := self._error(key)) is not None}
        for key in self._items:
            if key not in errors and not records.is_finished(self._job.out, key):
                errors[key] = "neither scores nor an error could be written (is the disk full?)"
        summary = Summary()
        for cell in self._job.cells:
            failed: dict[str, list[str]] = {}
            for task, key in cell.records.items():
                if key in errors:
                    failed.setdefault(errors[key], []).append(task)
            if failed:
                summary.failed[cell.label] = "; ".join(
                    f"{', '.join(tasks)}: {error}" if len(cell.records) > 1 else error
                    for error, tasks in failed.items()
                )
            elif self._now & set(cell.records.values()):
                summary.evaluated.append(cell.label)
            else:
                summary.before.append(cell.label)
        return summary

    def _on_disk(self) -> set[str]:
        """Return the keys of all that has a record or a failure; opens no file."""
        folders = (self._job.out / name for name in ("records", "failures"))
        return {path.stem for each in folders if each.is_dir() for path in each.iterdir()}

    def _error(self, key: str) -> str | None:
        """Return why this call has no record of `key`."""
        failure = records.read_failure(self._job.out, key)
        return failure.error if failure is not None and failure.call == self._job.call else None

    def _record(self, key: str) -> records.TaskRecord | None:
        finished = records.is_finished(self._job.out, key)
        return records.read_record(self._job.out, key) if finished else None

    def _show(self, weights_key: str) -> None:
        items = self._models[weights_key]
        if not self._now & items.keys():
            return
        known = {key: self._record(key) for key in items}
        for cell in self._job.cells:
            if cell.weights_key == weights_key:
                keys = cell.records.items()
                found = {t: r.evaluation for t, k in keys if (r := known[k]) is not None}
                for show in self._shows:
                    show(cell, found)

    def _tell(self) -> None:
        total = len(self._items)
        tell(Step("", total - len(self._left), total, unit="tasks", is_whole=True))
