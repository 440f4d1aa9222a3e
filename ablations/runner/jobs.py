"""Runs a job with workers, in this process or in several, and shows their progress.

A worker that dies (killed for memory, a crash in native code) costs the model that it held; another
one is started in its place. Whatever a command has started ends with it, however it ended.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ablations.machine.lifetime import take_descendants_along
from ablations.machine.progress import Step, above, note_finished_work, show_step, status_line
from ablations.machine.whole_files import DiskFull
from ablations.runner.work import Engine, Job, Work
from ablations.runner.worker import evaluate_claimed
from ablations.runs import records
from ablations.runs.records import Failure, TaskRecord
from ablations.scoring.evaluation import Evaluation
from ablations.statistics.as_text import with_interval
from ablations.study.cells import PlannedCell
from ablations.tasks.names import task_name
from layerswap_method.errors import LayerSwapError, counted, printable

logger = logging.getLogger(__name__)

_POLL_S = 0.3
_FULL = 28
"""Exit code of a worker that found the disk full."""

_WIDTH = 100
_LOST = "neither scores nor an error could be written (is the disk full?)"

ShowCell = Callable[[PlannedCell, Mapping[str, Evaluation]], None]
"""Shows a cell that has ended now, with the evaluations that it has, by task."""


@dataclass
class Summary:
    """The outcome of a call."""

    evaluated: list[str] = field(default_factory=list)
    """Labels of cells that were finished now (those of equal weights counted each)."""

    before: list[str] = field(default_factory=list)
    """Labels of cells that were finished before, or by another runner meanwhile."""

    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""


class Board:
    """Reports what workers have written since its last look."""

    def __init__(self, job: Job, show: ShowCell | None = None):
        """Look for the first time; report nothing that is finished already."""
        self._job, self._show_cell = job, show
        self._works = job.works()
        self._models = [work.cell.weights_key for work in self._works.values()]
        """The model of every record of the job."""
        self._left = {*records.unfinished_records(job.out, job.cells)}
        self._work: Work | None = None
        """The evaluation that this process is at, if there is one."""
        if len(self._left) < len(self._works):
            note_finished_work()
        self._show_progress()

    @property
    def has_ended(self) -> bool:
        """Whether there is a record, or a failure of this call, for everything."""
        return not self._left

    def begin(self, work: Work) -> None:
        """Show that this process evaluates `work` now."""
        self._work = work
        self._show_progress()
        show_step(Step(f"{work.cell.label}: {work.task}"))

    def look(self) -> None:
        """Report the tasks, and show the cells, that have ended since the last look."""
        folders = (self._job.out / name for name in ("records", "failures"))
        written = {path.stem for folder in folders for path in folder.glob("*")}
        outcomes = {key: self._job.outcome(key) for key in sorted(self._left & written)}
        ended = {key: outcome for key, outcome in outcomes.items() if outcome is not None}
        for key, outcome in ended.items():
            title = f"  {self._works[key].cell.label}: {self._works[key].task}"
            if isinstance(outcome, TaskRecord):
                note_finished_work()
                logger.info("%s evaluated in %.1f s", title, outcome.timing_s["total"])
            else:
                logger.warning("%s failed: %s", title, outcome.error)
        if not ended:
            return
        self._left -= ended.keys()
        self._show_progress()
        for cell in self._job.cells:
            keys = set(cell.record_keys.values())
            if not ended.keys().isdisjoint(keys) and self._left.isdisjoint(keys):
                self._show(cell)

    def summary(self) -> Summary:
        """Return the outcome of every cell, read from the run folder."""
        summary = Summary()
        lost = Failure(key="", task="", label="", error=_LOST)
        outcomes = {key: self._job.outcome(key) or lost for key in self._works}
        for cell in self._job.cells:
            failed: dict[str, list[str]] = {}
            for task, key in cell.record_keys.items():
                if isinstance(outcome := outcomes[key], Failure):
                    failed.setdefault(outcome.error, []).append(task)
            if failed:
                summary.failed[cell.label] = "; ".join(
                    f"{', '.join(tasks)}: {error}" if len(cell.record_keys) > 1 else error
                    for error, tasks in failed.items()
                )
            elif any(self._is_new(outcomes[key]) for key in cell.record_keys.values()):
                summary.evaluated.append(cell.label)
            else:
                summary.before.append(cell.label)
        return summary

    def _is_new(self, outcome: TaskRecord | Failure) -> bool:
        return isinstance(outcome, TaskRecord) and outcome.provenance.get("call") == self._job.call

    def _show(self, cell: PlannedCell) -> None:
        """Show a cell, if this call has evaluated something of it."""
        outcomes = {task: self._job.outcome(key) for task, key in cell.record_keys.items()}
        done = {t: outcome for t, outcome in outcomes.items() if isinstance(outcome, TaskRecord)}
        if self._show_cell is not None and any(map(self._is_new, done.values())):
            self._show_cell(cell, {task: record.evaluation for task, record in done.items()})

    def _show_progress(self) -> None:
        total = len(self._works)
        done = total - len(self._left)
        show_step(Step(self._position(), done, total, unit="tasks", scope="command"))

    def _position(self) -> str:
        """Return the place of the present task in words: ``model 3 of 10, task 2 of 4``."""
        left = Counter(self._works[key].cell.weights_key for key in self._left)
        number = len(set(self._models))
        ended = number - len(left)
        if self._work is None:
            return f"{ended} of {counted(number, 'model')}"
        model = self._work.cell.weights_key
        tasks, tasks_left = self._models.count(model), left[model]
        parts = []
        if number > 1:
            parts.append(f"model {ended + 1 if tasks_left else ended} of {number}")
        if tasks_left:
            parts.append(f"task {tasks - tasks_left + 1} of {tasks}")
        return ", ".join(parts)


Start = Callable[[Job, Board], None]
"""Has workers do a job, and the board look now and then; returns when they have ended."""


def in_this_process(job: Job, board: Board) -> None:
    """Work here."""
    evaluate_claimed(job, board.look, board.begin)


def run_cells(
    out: Path,
    cells: Sequence[PlannedCell],
    make_engine: Callable[[], Engine],
    *,
    protocol_key: str = "",
    progress: bool | None = None,
    show: ShowCell | None = None,
    start: Start = in_this_process,
) -> Summary:
    """Evaluate every task of every cell that has no record yet, and write the records.

    What fails is noted with its reason, and the rest goes on. Models that another runner works on
    are waited for.

    `make_engine` is called in each worker. `progress` is that of `status_line`; `show` is
    called for every cell that has ended now.
    """
    job = Job(out, cells, make_engine, uuid.uuid4().hex, protocol_key)
    with status_line(progress):
        board = Board(job, show)
        if not board.has_ended:
            take_descendants_along()
            start(job, board)
            board.look()
        return board.summary()


def in_processes(job: Job, board: Board, *, jobs: int, gpus: int) -> None:
    """Work in `jobs` processes, each with `gpus` of the GPUs.

    Raises:
        DiskFull: where one of them finds the disk full.
        LayerSwapError: where processes end again and again before they have begun.
    """
    workers = {place: _start(job, place, gpus) for place in range(jobs)}
    spare = len({cell.weights_key for cell in job.cells}) + jobs
    show_step(Step(f"{jobs} workers evaluate"))
    try:
        while workers:
            sentinels = [process.sentinel for process in workers.values()]
            multiprocessing.connection.wait(sentinels, timeout=_POLL_S)
            board.look()
            for place, process in list(workers.items()):
                if process.is_alive():
                    continue
                del workers[place]
                if process.exitcode == 0:
                    continue
                if process.exitcode == _FULL:
                    raise DiskFull(
                        f"{job.out}: the disk is full (see above); make room and run the same "
                        "command again"
                    )
                ending = f"process {process.pid} ended with exit code {process.exitcode}"
                if not spare:
                    raise LayerSwapError(f"no engine can be started: {ending}; see above")
                logger.warning("  %s; another worker goes on", ending)
                spare -= 1
                workers[place] = _start(job, place, gpus)
    finally:
        for process in workers.values():
            process.kill()
            process.join()


def _start(job: Job, place: int, gpus: int) -> SpawnProcess:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(job, place, gpus))
    # The worker inherits the mask; a Ctrl-C that comes now is met by this process just after.
    resource_tracker.ensure_running()  # when it starts it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _work(job: Job, place: int, gpus: int) -> None:
    take_descendants_along()
    if Path("/proc/driver/nvidia").exists():
        import torch

        if (count := torch.cuda.device_count()) > 1:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            names = seen if len(seen) == count else [str(index) for index in range(count)]
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share_of(names, place, gpus))
    try:
        evaluate_claimed(job)
    except DiskFull as error:
        logger.error("%s", error.message)
        sys.exit(_FULL)


def share_of(names: Sequence[str], place: int, gpus: int) -> Sequence[str]:
    """Return the GPUs of the process number `place`: `gpus` of them, or all where there are fewer.

    Processes share them where there are too few.
    """
    shares = max(1, len(names) // gpus)
    first = place % shares * gpus
    return names[first : first + gpus]


def show_scores(
    cell: PlannedCell, evaluations: Mapping[str, Evaluation], metric: str | None = None
) -> None:
    """Print the scores of a cell on stdout: its label, and `metric` of the tasks that have it."""
    parts = []
    for task in cell.record_keys:
        shown = "failed"
        if task in evaluations:
            score = evaluations[task].shown_score(task, metric)
            shown = with_interval(score.value, score.interval, score.is_share)
        parts.append(f"{task_name(task)}: {shown}".replace(" ", "\N{NO-BREAK SPACE}"))
    text = textwrap.fill(f"{cell.label}  {'; '.join(parts)}", _WIDTH, subsequent_indent="  ")
    text = printable(text.replace("\N{NO-BREAK SPACE}", " "))
    if not above(text, sys.stdout):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
