"""The loop over the cells of a study: what is left, who does it, what is written when.

Knows cells, claims, records and the executor's contract; no engine, and nothing heavy is imported.
Only this process writes records. A record is finished when its folder is there; whatever else was
under way when a runner was killed is done again. A runner claims a model and asks it all its tasks.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.machine.locks import holder, try_claim
from ablations.machine.progress import Step, tell
from ablations.machine.status_line import status_line
from ablations.runner import records, unfinished
from ablations.runner.work import Done, Doubt, Executor, Failed, Outcome, Work
from ablations.scoring import SCORING_VERSION
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from filelock import FileLock

logger = logging.getLogger(__name__)

ShowCell = Callable[[Cell, Mapping[str, Evaluation]], None]
"""Shows a cell that has ended now, with the evaluations that it has, by task."""

LOCKS = ".locks"
_WAIT_S = 0.3
_TRIES_WHEN_LOST = 3
"""How often an item is begun when the place where it ran keeps going away."""


@dataclass
class Summary:
    """What a call of `run_cells` has done."""

    evaluated: list[str] = field(default_factory=list)
    """Labels of cells that were finished now (those of equal weights counted each)."""

    before: list[str] = field(default_factory=list)
    """Labels of cells that were finished before, or by another runner meanwhile."""

    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""


@dataclass
class _Model:
    """The cells of equal weights, and what is asked of them."""

    cells: list[Cell] = field(default_factory=list)
    items: dict[str, Work] = field(default_factory=dict)
    """Score key -> item."""

    errors: dict[str, str] = field(default_factory=dict)
    """Score key -> error."""

    done: set[str] = field(default_factory=set)
    """Score keys of what this runner has evaluated."""


@dataclass
class _Running:
    model: _Model
    claim: FileLock
    left: list[Work]
    """Items to be begun; the first one is under way."""

    started: float
    tries: int = 1


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    executor: Executor,
    *,
    protocol: str = "",
    provenance: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    shows: Sequence[ShowCell] = (),
) -> Summary:
    """Ask every task of every cell that has no record yet, and write the records.

    What fails is noted with its reason, and the rest goes on. Models that another runner works on
    are waited for.

    Args:
        out: the run folder.
        cells: with their keys.
        executor: where the work is done; not closed here.
        protocol: of the records.
        provenance: goes into every record.
        progress: whether to show what is being done; None shows it on a terminal only.
        shows: each is called for every cell that has ended now.

    Raises:
        InputError: for records of another schema version.
    """
    with status_line(progress):
        return _Loop(out, cells, executor, protocol, provenance or {}, shows).run()


class _Loop:
    def __init__(
        self,
        out: Path,
        cells: Sequence[Cell],
        executor: Executor,
        protocol: str,
        provenance: Mapping[str, Any],
        shows: Sequence[ShowCell],
    ):
        self._out = out
        self._executor = executor
        self._protocol = protocol
        self._provenance = provenance
        self._shows = shows
        self._summary = Summary()
        self._models: dict[str, _Model] = {}
        for cell in cells:
            model = self._models.setdefault(cell.weights_key, _Model())
            model.cells.append(cell)
            for item in items_of(cell):
                model.items.setdefault(item.score_key, item)
        self._waiting = list(self._models)
        self._running: dict[str, _Running] = {}
        self._told: set[str] = set()
        self._total = sum(len(model.items) for model in self._models.values())
        self._ended = 0

    def run(self) -> Summary:
        self._advance(0)
        try:
            self._sweep()
            while self._waiting or self._running or self._settle():
                while len(self._running) < self._executor.slots and self._begin_one():
                    pass
                if self._running:
                    for work, outcome in self._executor.collect():
                        self._end(work, outcome)
                elif self._waiting:
                    time.sleep(_WAIT_S)
        finally:
            for running in self._running.values():
                running.claim.release()
        self._summarize()
        return self._summary

    def _sweep(self) -> None:
        """Remove what killed runners left half written."""
        left = unfinished.partial_paths(self._out)
        for weights_key, model in self._models.items():
            paths = [path for key in model.items for path in left.get(key, ())]
            with contextlib.suppress(OSError):
                claim = try_claim(self._out / LOCKS, weights_key) if paths else None
                if claim is not None:  # so nobody is writing them
                    for path in paths:
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                            missing_ok=True
                        )
                    claim.release()

    def _begin_one(self) -> bool:
        """Claim the next model that is free and begin its first task; False if there is none."""
        for weights_key in list(self._waiting):
            model = self._models[weights_key]
            if not self._missing(model):
                self._waiting.remove(weights_key)
                self._advance(len(model.items))
                continue
            try:
                claim = try_claim(self._out / LOCKS, weights_key)
            except OSError as error:
                self._waiting.remove(weights_key)
                for item in model.items.values():
                    self._fail(model, item, Failed(f"it cannot be claimed: {error}"))
                return True
            if claim is None:
                if weights_key not in self._told:
                    self._told.add(weights_key)
                    who = holder(self._out / LOCKS, weights_key)
                    logger.info("  %s: %s works on it", model.cells[0].label, who)
                continue
            left = self._missing(model)
            if not left:  # finished just now
                claim.release()
                continue
            self._waiting.remove(weights_key)
            self._advance(len(model.items) - len(left))
            self._running[weights_key] = _Running(model, claim, left, time.monotonic())
            self._executor.submit(left[0])
            return True
        return False

    def _missing(self, model: _Model) -> list[Work]:
        return [item for key, item in model.items.items() if not _is_whole(self._out, key)]

    def _end(self, work: Work, outcome: Outcome) -> None:
        if outcome.doubt is not None:
            self._withdraw(outcome.doubt)
        running = self._running[work.weights_key]
        if isinstance(outcome, Failed) and outcome.lost and running.tries < _TRIES_WHEN_LOST:
            logger.info("  %s: %s; it is tried elsewhere", work.label, outcome.error)
            running.tries += 1
            self._executor.submit(work)
            return
        ended = time.monotonic()
        total, running.started, running.tries = ended - running.started, ended, 1
        running.left.remove(work)
        failed = self._write(running.model, work, outcome, total)
        if failed is not None and failed.of_model:
            for item in running.left:
                self._fail(running.model, item, failed)
            running.left.clear()
        if running.left:
            self._executor.submit(running.left[0])
            return
        del self._running[work.weights_key]
        running.claim.release()
        self._show_cells(running.model)

    def _settle(self) -> bool:
        """Have every engine checked at the end; return whether something is to be done again."""
        for doubt in self._executor.settle():
            self._withdraw(doubt)
        return bool(self._waiting)

    def _withdraw(self, doubt: Doubt) -> None:
        """Take back what was evaluated in an engine that is wrong, so that it is done again."""
        for weights_key, model in self._models.items():
            again = [item for key, item in model.items.items() if key in doubt.score_keys]
            for item in again:
                unfinished.withdraw(self._out, item.score_key)
            again = [item for item in again if item.score_key in model.done]
            if not again:
                continue
            tasks = ", ".join(item.task for item in again)
            logger.warning("  %s: %s is done again: %s", again[0].label, tasks, doubt.reason)
            model.done -= {item.score_key for item in again}
            self._ended -= len(again)
            if weights_key in self._running:
                self._running[weights_key].left += again
            else:
                self._waiting.append(weights_key)

    def _write(self, model: _Model, work: Work, outcome: Outcome, total: float) -> Failed | None:
        """Write the record; return why there is none."""
        if isinstance(outcome, Done):
            try:
                records.write_record(
                    self._out, self._record(work, outcome, total), dict(work.merge)
                )
            except OSError as error:
                outcome = Failed(f"its record cannot be written: {error}")
        if isinstance(outcome, Failed):
            self._fail(model, work, outcome)
            return outcome
        unfinished.answers_path(self._out, work.score_key).unlink(missing_ok=True)
        model.done.add(work.score_key)
        model.errors.pop(work.score_key, None)  # of an earlier try
        logger.info("  %s: %s evaluated in %.1f s", work.label, work.task, total)
        self._advance(1)
        return None

    def _show_cells(self, model: _Model) -> None:
        if not self._shows or not model.done:
            return
        found = {key: records.read_record(self._out, key) for key in model.items}
        for cell in model.cells:
            keys = cell.score_keys.items()
            known = {t: r.evaluation for t, k in keys if (r := found[k]) is not None}
            for show in self._shows:
                show(cell, known)

    def _record(self, work: Work, done: Done, total: float) -> records.TaskRecord:
        provenance = {
            **self._provenance,
            **done.provenance,
            "request": work.request.model_dump(mode="json"),
            "scoring_version": SCORING_VERSION,
            "finished": now(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return records.TaskRecord(
            key=work.score_key,
            weights_key=work.weights_key,
            protocol=self._protocol,
            task=work.task,
            label=work.label,
            evaluation=done.evaluation,
            timing_s={**done.timing_s, "total": total},
            provenance=provenance,
        )

    def _advance(self, count: int) -> None:
        """Tell that tasks have ended, or were finished before."""
        self._ended += count
        tell(Step("", self._ended, self._total, unit="tasks", is_whole=True))

    def _fail(self, model: _Model, item: Work, outcome: Failed) -> None:
        model.errors[item.score_key] = outcome.error
        logger.warning("  %s: %s failed: %s", item.label, item.task, outcome.error)
        with contextlib.suppress(OSError):  # a full disk: the summary says it all the same
            known = records.read_failure(self._out, item.score_key)
            failure = records.Failure(
                key=item.score_key,
                task=item.task,
                label=item.label,
                error=outcome.error,
                details=outcome.details,
                when=now(),
                attempt=1 if known is None else known.attempt + 1,
            )
            records.write_failure(self._out, failure)
        self._advance(1)

    def _summarize(self) -> None:
        """Say of every cell what became of it."""
        for model in self._models.values():
            for cell in model.cells:
                failed: dict[str, list[str]] = {}
                for task, key in cell.score_keys.items():
                    if key in model.errors:
                        failed.setdefault(model.errors[key], []).append(task)
                if failed:
                    self._summary.failed[cell.label] = "; ".join(
                        f"{', '.join(tasks)}: {error}" if len(cell.score_keys) > 1 else error
                        for error, tasks in failed.items()
                    )
                elif model.done & set(cell.score_keys.values()):
                    self._summary.evaluated.append(cell.label)
                else:
                    self._summary.before.append(cell.label)


def now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def items_of(cell: Cell) -> Iterator[Work]:
    """Yield an item for every task of an identified cell."""
    for task, key in cell.score_keys.items():
        request = cell.request.model_copy(update={"tasks": (task,)})
        yield Work(key, cell.weights_key, cell.label, cell.merge, request)


def _is_whole(out: Path, key: str) -> bool:
    """Return whether there is a record that can be read; a damaged one is as good as none."""
    if not records.is_finished(out, key):
        return False
    try:
        return records.read_record(out, key) is not None
    except LayerSwapError as error:
        if error.exit_code == 2:  # another schema version
            raise
        logger.warning("%s; the task is asked again", error.message)
        return False
