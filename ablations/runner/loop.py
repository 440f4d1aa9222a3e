"""The loop over the cells of a study: what is left, who does it, what is written when.

Knows cells, claims, records and the executor's contract; no engine, and nothing heavy is imported.
Only this process writes records. A cell is finished when its folder is there; whatever else was
under way when a runner was killed is done again.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ablations.machine.locks import holder, try_claim
from ablations.runner import records
from ablations.runner.reuse import copy_record, finished_by_score
from ablations.runner.work import Done, Executor, Failed, Outcome, Work
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from filelock import FileLock

logger = logging.getLogger(__name__)

LOCKS = ".locks"
_WAIT_S = 0.3
_TRIES_WHEN_LOST = 3
"""How often an item is begun when the place where it ran keeps going away."""


@dataclass
class Summary:
    """What a call of `run_cells` has done."""

    evaluated: list[str] = field(default_factory=list)
    """Labels of cells that were evaluated now (those of equal weights counted each)."""

    reused: list[str] = field(default_factory=list)
    """Labels of cells whose scores were in the folder under another name of the cell."""

    before: list[str] = field(default_factory=list)
    """Labels of cells that were finished before, or by another runner meanwhile."""

    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""


@dataclass
class _Running:
    cells: Sequence[Cell]
    claim: FileLock
    started: float
    tries: int = 1


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    executor: Executor,
    *,
    provenance: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Summary:
    """Evaluate every cell that has no record yet, and write its record.

    A cell that fails is noted with its reason, and the others go on. Cells that another runner
    works on are waited for.

    Args:
        out: the run folder.
        cells: with their keys.
        executor: where the work is done; not closed here.
        provenance: goes into every record.
        progress: whether to show a bar; None shows it on a terminal only.

    Raises:
        InputError: for records of another schema version.
    """
    return _Loop(out, cells, executor, provenance or {}, progress).run()


class _Loop:
    def __init__(
        self,
        out: Path,
        cells: Sequence[Cell],
        executor: Executor,
        provenance: Mapping[str, Any],
        progress: bool | None,
    ):
        self._out = out
        self._executor = executor
        self._provenance = provenance
        self._summary = Summary()
        self._groups: dict[str, list[Cell]] = {}
        for cell in cells:
            self._groups.setdefault(cell.score_key, []).append(cell)
        self._waiting = list(self._groups)
        self._running: dict[str, _Running] = {}
        self._told: set[str] = set()
        shown = None if progress is None else not progress
        self._bar = tqdm(total=len(cells), unit="cell", disable=shown, file=sys.stderr)

    def run(self) -> Summary:
        try:
            self._sweep()
            self._reuse()
            while self._waiting or self._running:
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
            self._bar.close()
        return self._summary

    def _sweep(self) -> None:
        """Remove what killed runners left half written."""
        left = {name.split(".")[1] for name in records.partial_names(self._out)}
        for score_key, cells in self._groups.items():
            keys = [cell.key for cell in cells if cell.key in left]
            claim = self._claim_if_free(score_key) if keys else None
            if claim is not None:
                for key in keys:
                    records.remove_partial(self._out, key)
                claim.release()

    def _reuse(self) -> None:
        """Give cells the scores that are here under another name: equal weights and protocol."""
        known = finished_by_score(self._out)
        for score_key, cells in self._groups.items():
            source = known.get(score_key)
            missing = [cell for cell in cells if not _is_whole(self._out, cell.key)]
            if source is None or not missing:
                continue
            claim = self._claim_if_free(score_key)
            if claim is None:
                continue
            try:
                for cell in missing:
                    copy_record(self._out, source, cell)
                    self._summary.reused.append(cell.label)
                    self._skip(1)
            except (OSError, LayerSwapError) as error:  # then they are evaluated
                logger.warning("  %s: cannot be copied: %s", cells[0].label, error)
            finally:
                claim.release()

    def _claim_if_free(self, score_key: str) -> FileLock | None:
        with contextlib.suppress(OSError):
            return try_claim(self._out / LOCKS, score_key)
        return None

    def _begin_one(self) -> bool:
        """Claim and submit the next item that is free; False where there is none now."""
        for score_key in list(self._waiting):
            cells = self._groups[score_key]
            if all(_is_whole(self._out, cell.key) for cell in cells):
                self._waiting.remove(score_key)
                new = [c.label for c in cells if c.label not in self._summary.reused]
                self._summary.before += new
                self._skip(len(new))
                continue
            try:
                claim = try_claim(self._out / LOCKS, score_key)
            except OSError as error:
                self._waiting.remove(score_key)
                for cell in cells:
                    self._fail(cell, Failed(f"it cannot be claimed: {error}"))
                return True
            if claim is None:
                if score_key not in self._told:
                    self._told.add(score_key)
                    who = holder(self._out / LOCKS, score_key)
                    logger.info("  %s: %s works on it", cells[0].label, who)
                continue
            if all(_is_whole(self._out, cell.key) for cell in cells):  # finished just now
                claim.release()
                continue
            self._waiting.remove(score_key)
            self._running[score_key] = _Running(cells, claim, time.monotonic())
            self._bar.set_postfix_str(cells[0].label)
            self._executor.submit(_work(cells[0]))
            return True
        return False

    def _end(self, work: Work, outcome: Outcome) -> None:
        running = self._running[work.score_key]
        if isinstance(outcome, Failed) and outcome.lost and running.tries < _TRIES_WHEN_LOST:
            logger.info("  %s: %s; it is tried elsewhere", work.label, outcome.error)
            running.tries += 1
            self._executor.submit(work)
            return
        del self._running[work.score_key]
        total = time.monotonic() - running.started
        try:
            for cell in running.cells:
                self._write(cell, running.cells[0], outcome, total)
        finally:
            running.claim.release()

    def _write(self, cell: Cell, first: Cell, outcome: Outcome, total: float) -> None:
        if isinstance(outcome, Done):
            try:
                self._write_record(cell, first, outcome, total)
            except OSError as error:
                outcome = Failed(f"its record cannot be written: {error}")
        if isinstance(outcome, Failed):
            self._fail(cell, outcome)
        else:
            self._summary.evaluated.append(cell.label)
            logger.info("  %s: %.1f s", cell.label, total)
            self._bar.update()

    def _skip(self, count: int) -> None:
        """Move the bar without a say in the time that is left."""
        if not self._bar.disable:
            self._bar.initial += count
            self._bar.n += count
            self._bar.refresh()

    def _fail(self, cell: Cell, outcome: Failed) -> None:
        self._summary.failed[cell.label] = outcome.error
        logger.warning("  %s failed: %s", cell.label, outcome.error)
        self._note_failure(cell, outcome)
        self._bar.update()

    def _write_record(self, cell: Cell, first: Cell, done: Done, total: float) -> None:
        evaluation = done.evaluation
        provenance = {
            **self._provenance,
            **done.provenance,
            "study": cell.study,
            "request": cell.request.model_dump(mode="json"),
            "versions": evaluation.versions,
            "task_versions": evaluation.task_versions,
            "num_fewshot": evaluation.num_fewshot,
            "finished": now(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        if cell.key != first.key:
            provenance["evaluated_as"] = first.label
        head = records.CellHead(
            key=cell.key,
            weights_key=cell.weights_key,
            score_key=cell.score_key,
            label=cell.label,
            values=dict(cell.values),
            experts=dict(cell.experts),
            language=cell.language,
            kind=cell.kind,
            plan=None if cell.plan is None else cell.plan.sources,
            backend=evaluation.backend,
            timing_s={**done.timing_s, "total": total},
            provenance=provenance,
            skipped=evaluation.skipped,
            notes=evaluation.notes,
        )
        merge = dict(cell.merge)
        records.write_cell(self._out, head, merge, evaluation.scores, evaluation.samples)

    def _note_failure(self, cell: Cell, outcome: Failed) -> None:
        with contextlib.suppress(OSError):  # a full disk: the summary says it all the same
            known = records.read_failure(self._out, cell.key)
            failure = records.Failure(
                key=cell.key,
                label=cell.label,
                error=outcome.error,
                details=outcome.details,
                when=now(),
                attempt=1 if known is None else known.attempt + 1,
            )
            records.write_failure(self._out, failure)


def now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _work(cell: Cell) -> Work:
    return Work(
        score_key=cell.score_key,
        label=cell.label,
        merge=cell.merge,
        request=cell.request,
    )


def _is_whole(out: Path, key: str) -> bool:
    """Return whether a cell has a record that can be read; a damaged one is as good as none."""
    if not records.is_finished(out, key):
        return False
    try:
        return records.read_cell(out, key) is not None
    except LayerSwapError as error:
        if error.exit_code == 2:  # another schema version
            raise
        logger.warning("%s; the cell is evaluated again", error.message)
        return False
