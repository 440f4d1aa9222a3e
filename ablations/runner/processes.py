"""Engines in processes of their own on this machine. Knows processes and pipes; not engines.

An engine that dies (killed for memory, a crash in native code) takes its process with it and
nothing else: its item has failed, the next one gets a new process. A worker ends with its parent,
however that ended, and whatever it has started ends with the worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from ablations.machine.lifetime import end_with_parent, take_descendants_along
from ablations.machine.progress import Step, listening, now_and_then, tell, together
from ablations.runner.work import Doubt, Failed, Outcome, Work, WorkEvaluator, attempt

_POLL_S = 0.2
_GRACE_S = 20.0
"""How long an idle engine may take to end before its process is killed."""
_BUSY_GRACE_S = 1.0


@dataclass
class _Worker:
    process: SpawnProcess
    pipe: Connection
    work: Work | None = None
    last: str = ""
    """Of the weights that its evaluator holds."""

    step: Step | None = None
    """What it said last of the item."""


class ProcessExecutor:
    """Runs items in up to `jobs` spawned processes, each with an evaluator that it keeps."""

    def __init__(self, factory: Callable[[], WorkEvaluator], jobs: int = 1, gpus: int = 1):
        """Start nothing yet.

        Args:
            factory: makes the evaluator in the worker; picklable.
            jobs: processes at most, 1 or more.
            gpus: that one of them takes.
        """
        self._gpus = gpus
        self._factory = factory
        self._jobs = jobs
        self._context = multiprocessing.get_context("spawn")
        self._workers: dict[int, _Worker] = {}

    @property
    def slots(self) -> int:
        """The number of processes."""
        return self._jobs

    def submit(self, work: Work) -> None:
        """Hand the item to an idle process, starting one if there is none."""
        free = [p for p in range(self._jobs) if p not in self._workers or not self._workers[p].work]
        held = (p for p in free if p in self._workers and self._workers[p].last == work.weights_key)
        place = next(held, free[0])
        worker = self._workers.get(place)
        if worker is not None and not worker.process.is_alive():  # ended while idle
            self._remove(place)
            worker = None
        if worker is None:
            tell(Step("starting a process for the engine", where=work.label))
            worker = self._workers[place] = self._start(place)
        worker.work, worker.last = work, work.weights_key
        with contextlib.suppress(OSError):  # it ended just now; `collect` finds out how
            worker.pipe.send(work)

    def collect(self) -> Sequence[tuple[Work, Outcome]]:
        """Return what the processes have sent, and the items of those that died."""
        busy = {w.pipe: place for place, w in self._workers.items() if w.work is not None}
        ended = []
        for pipe in multiprocessing.connection.wait(list(busy), timeout=_POLL_S):
            if not isinstance(pipe, Connection):
                continue
            place = busy[pipe]
            worker = self._workers[place]
            outcome: Outcome | Step
            try:
                outcome = pipe.recv()
                if isinstance(outcome, Step):
                    worker.step = outcome
                    self._tell()
                    continue
            except (EOFError, OSError):
                worker.process.join(_GRACE_S)
                ending = _ending(worker.process.exitcode)
                outcome = Failed(f"the engine's process {ending}", of_model=True)
                self._remove(place)
            if worker.work is not None:
                ended.append((worker.work, outcome))
            worker.work = worker.step = None
        return ended

    def _tell(self) -> None:
        workers = self._workers.values()
        steps = {w.work.label: w.step for w in workers if w.work is not None and w.step is not None}
        if steps:
            tell(together(steps))

    def settle(self) -> Sequence[Doubt]:
        """Have the engine of every process checked; one that died has nothing to say."""
        found = []
        for worker in self._workers.values():
            with contextlib.suppress(EOFError, OSError):
                worker.pipe.send(None)
                while isinstance(doubt := worker.pipe.recv(), Step):
                    tell(doubt)
                found += [doubt] if doubt is not None else []
        return found

    def close(self) -> None:
        """Let idle processes end by themselves; end the busy ones."""
        for worker in self._workers.values():
            if worker.work is not None:
                worker.process.terminate()
            worker.pipe.close()
        for worker in self._workers.values():
            worker.process.join(_GRACE_S if worker.work is None else _BUSY_GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def _start(self, place: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        share = (place, self._gpus) if self._jobs > 1 else None
        process = self._context.Process(target=_work, args=(theirs, self._factory, share))
        if threading.current_thread() is not threading.main_thread():  # it may set no signals
            process.start()
        else:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker inherits it
            process.start()
            signal.signal(signal.SIGINT, before)
        theirs.close()
        return _Worker(process, ours)

    def _remove(self, place: int) -> None:
        worker = self._workers.pop(place)
        worker.pipe.close()
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()


def _work(
    pipe: Connection, factory: Callable[[], WorkEvaluator], share: tuple[int, int] | None
) -> None:
    """Evaluate what comes through the pipe; runs in the spawned process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    end_with_parent()
    take_descendants_along()
    if share is not None:
        _choose_devices(*share)
    evaluator = factory()
    try:
        with listening(now_and_then(pipe.send)):
            while True:
                try:
                    work = pipe.recv()
                except EOFError:
                    return
                pipe.send(evaluator.check(None) if work is None else attempt(evaluator, work))
    finally:
        evaluator.close()


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
    if code is None:
        return "stopped answering and was killed"
    if code < 0:
        number = -code
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        hint = " (often: out of memory)" if number == signal.SIGKILL else ""
        return f"was ended by {name}{hint}"
    return f"ended with exit code {code}; its output is above"
