"""How the workers of a command are started: in its own process, or in several.

A worker that dies (killed for memory, a crash in native code) costs the model that it held; another
one is started in its place. A worker ends with its parent, however that ended, and whatever it has
started ends with the worker.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ablations.machine.lifetime import end_with_parent, take_descendants_along
from ablations.machine.locks import has_owner
from ablations.machine.status_line import status_line
from ablations.runner.board import Board, ShowCell, Summary
from ablations.runner.work import Job, WorkEvaluator
from ablations.runner.worker import LOCKS, work
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError

logger = logging.getLogger(__name__)

_POLL_S = 0.3
_GRACE_S = 1.0

Start = Callable[[Job, Board], None]
"""Has workers do a job, and the board look now and then; returns when they have ended."""


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    evaluator: Callable[[], WorkEvaluator],
    *,
    protocol: str = "",
    progress: bool | None = None,
    shows: Sequence[ShowCell] = (),
    start: Start | None = None,
) -> Summary:
    """Ask every task of every cell that has no record yet, and write the records.

    What fails is noted with its reason, and the rest goes on. Models that another runner works on
    are waited for; those at which an earlier one was killed come last.

    Args:
        out: the run folder.
        cells: with their keys.
        evaluator: makes what evaluates, in the worker; picklable where that is another process.
        protocol: of the records.
        progress: whether to show what is being done; None shows it on a terminal only.
        shows: each is called for every cell that has ended now.
        start: how workers are started; None works in this process.
    """
    job = Job(out, cells, evaluator, uuid.uuid4().hex, protocol)
    with status_line(progress):
        board = Board(job, shows)
        killed = {key for key in job.models() if has_owner(out / LOCKS, key)}
        if not board.is_done:
            last = sorted(cells, key=lambda cell: cell.weights_key in killed)
            (start or in_this_process)(dataclasses.replace(job, cells=last), board)
            board.look()
        return board.summary()


def in_this_process(job: Job, board: Board) -> None:
    """Work here."""
    take_descendants_along()
    work(job, board.look)


def in_processes(job: Job, board: Board, *, jobs: int, gpus: int) -> None:
    """Work in `jobs` processes, each with its share of the GPUs.

    Args:
        job: what to do.
        board: looks now and then.
        jobs: processes, 1 or more.
        gpus: that one of them takes.

    Raises:
        LayerSwapError: where processes end again and again before they have begun.
    """
    workers = {place: _start(job, place, gpus) for place in range(jobs)}
    spare = len(job.models()) + jobs
    try:
        while workers:
            sentinels = [process.sentinel for process in workers.values()]
            multiprocessing.connection.wait(sentinels, timeout=_POLL_S)
            board.look()
            for place, process in list(workers.items()):
                if process.is_alive():
                    continue
                process.join()
                del workers[place]
                if process.exitcode != 0:
                    ending = f"process {process.pid} {_ending(process.exitcode)}"
                    if not spare:
                        raise LayerSwapError(f"no engine can be started: {ending}")
                    logger.warning("  %s; another one goes on", ending)
                    spare -= 1
                    workers[place] = _start(job, place, gpus)
    finally:
        for process in workers.values():
            process.terminate()
        for process in workers.values():
            process.join(_GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()


def _start(job: Job, place: int, gpus: int) -> SpawnProcess:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work, args=(job, place, gpus))
    if threading.current_thread() is not threading.main_thread():  # it may set no signals
        process.start()
        return process
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker inherits it
    process.start()
    signal.signal(signal.SIGINT, before)
    return process


def _work(job: Job, place: int, gpus: int) -> None:
    """Work in the spawned process; what an interrupt means is its parent's to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    take_descendants_along()
    _choose_devices(place, gpus)
    work(job)


def _choose_devices(place: int, gpus: int) -> None:
    """Give this process its share of the GPUs that it sees, if it sees several."""
    if not Path("/proc/driver/nvidia").exists():
        return
    import torch

    count = torch.cuda.device_count()
    if count > 1:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = seen if len(seen) == count else [str(index) for index in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share_of(names, place, gpus))


def share_of(names: Sequence[str], place: int, gpus: int) -> Sequence[str]:
    """Return the GPUs of one process; processes share them where there are too few.

    Args:
        names: of all GPUs.
        place: number of the process, from 0.
        gpus: that a process takes; all of them where there are fewer.
    """
    shares = max(1, len(names) // gpus)
    first = place % shares * gpus
    return names[first : first + gpus]


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        number = -code
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        hint = " (often: out of memory)" if number == signal.SIGKILL else ""
        return f"was ended by {name}{hint}"
    return f"ended with exit code {code}; its output is above"
