"""How the workers of a command are started: in its own process, or in several.

A worker that dies (killed for memory, a crash in native code) costs the model that it held; another
one is started in its place. Whatever a command has started ends with it, however it ended.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.machine.lifetime import take_descendants_along
from ablations.machine.progress import status_line
from ablations.runner.board import Board, ShowCell, Summary
from ablations.runner.worker import Job, work
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from ablations.runner.engines import StudyEngine

logger = logging.getLogger(__name__)

_POLL_S = 0.3

Start = Callable[[Job, Board], None]
"""Has workers do a job, and the board look now and then; returns when they have ended."""


def in_this_process(job: Job, board: Board) -> None:
    """Work here."""
    work(job, board.look)


def run_cells(
    out: Path,
    cells: Sequence[Cell],
    engine: Callable[[], StudyEngine],
    *,
    protocol: str = "",
    progress: bool | None = None,
    shows: Sequence[ShowCell] = (),
    start: Start = in_this_process,
) -> Summary:
    """Ask every task of every cell that has no record yet, and write the records.

    What fails is noted with its reason, and the rest goes on. Models that another runner works on
    are waited for.

    Args:
        out: the run folder.
        cells: with their keys.
        engine: makes what evaluates, in the worker; picklable where that is another process.
        protocol: of the records.
        progress: whether to show what is being done; None shows it on a terminal only.
        shows: each is called for every cell that has ended now.
        start: how workers are started.
    """
    job = Job(out, cells, engine, uuid.uuid4().hex, protocol)
    with status_line(progress):
        board = Board(job, shows)
        if not board.is_done:
            take_descendants_along()
            start(job, board)
            board.look()
        return board.summary()


def in_processes(job: Job, board: Board, *, jobs: int, gpus: int) -> None:
    """Work in `jobs` processes, each with `gpus` of the GPUs.

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
                del workers[place]
                if process.exitcode == 0:
                    continue
                ending = f"process {process.pid} ended with exit code {process.exitcode}"
                if not spare:
                    raise LayerSwapError(f"no engine can be started: {ending}; see above")
                logger.warning("  %s; another one goes on", ending)
                spare -= 1
                workers[place] = _start(job, place, gpus)
    finally:
        for process in workers.values():
            process.kill()
            process.join()


def _start(job: Job, place: int, gpus: int) -> SpawnProcess:
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(job, place, gpus))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker inherits it
    process.start()
    signal.signal(signal.SIGINT, before)
    return process


def _work(job: Job, place: int, gpus: int) -> None:
    take_descendants_along()
    if Path("/proc/driver/nvidia").exists():
        import torch

        if (count := torch.cuda.device_count()) > 1:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            names = seen if len(seen) == count else [str(index) for index in range(count)]
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share_of(names, place, gpus))
    work(job)


def share_of(names: Sequence[str], place: int, gpus: int) -> Sequence[str]:
    """Return the GPUs of the process number `place`: `gpus` of them, or all where there are fewer.

    Processes share them where there are too few.
    """
    shares = max(1, len(names) // gpus)
    first = place % shares * gpus
    return names[first : first + gpus]
