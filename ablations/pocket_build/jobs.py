"""The processes that make models, at most one a core. Knows neither models nor when to make them.

Every job runs in a spawned process on one torch thread, so the bytes do not depend on the
threads or random state of the caller, and two experts can train side by side.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ablations.machine.lifetime import end_with_parent
from ablations.machine.stages import Stage
from ablations.machine.training_bars import TrainingBars
from ablations.machine.whole_files import told_if_unwritable
from layerswap_method.errors import LayerSwapError

OnStep = Callable[[int, float], None]
"""Called after every step with the number of steps done and the loss."""


@dataclass(frozen=True)
class Job:
    """One model to make."""

    stage: Stage
    """Where it belongs."""

    fill: Callable[[Path, OnStep], dict[str, Any]]
    """Writes the model to a folder; returns what the stage's manifest records. It is pickled."""

    steps: int
    """Optimiser steps that it takes."""


def _run(job: Job, reports: Any) -> None:
    """Make one model and write its stage; runs in the spawned process."""
    # The same bytes everywhere: on the CPU, though there be a GPU.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    import torch
    from transformers.utils import logging as transformers_logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # Two threads gain nothing at these sizes, and their order of summation is not fixed.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    def report(step: int, loss: float) -> None:
        reports.put((job.stage.name, step, loss))

    try:
        with told_if_unwritable(job.stage.folder):
            job.stage.write(lambda folder: job.fill(folder, report))
    except LayerSwapError as error:
        sys.exit(f"{job.stage.name}: {error}")


def run_jobs(jobs: Sequence[Job]) -> None:
    """Make all models, which are independent, at most one per core at a time.

    Raises:
        LayerSwapError: a process failed; the reason stands above on stderr.
    """
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    waiting, running = list(jobs), dict[str, BaseProcess]()
    shown = TrainingBars({job.stage.name: job.steps for job in jobs})
    try:
        while waiting or running:
            while waiting and len(running) < (cores or 1):
                job = waiting.pop(0)
                process: BaseProcess = context.Process(
                    target=_run, args=(job, reports), daemon=True
                )
                process.start()
                running[job.stage.name] = process
            with contextlib.suppress(queue.Empty):
                shown.update(*reports.get(timeout=0.2))
            running = _still_running(running)
        with contextlib.suppress(queue.Empty):
            while True:
                shown.update(*reports.get_nowait())
    finally:
        shown.close()
        for process in running.values():
            process.terminate()
            process.join()
        reports.close()


def _still_running(running: dict[str, BaseProcess]) -> dict[str, BaseProcess]:
    for name, process in running.items():
        if process.exitcode not in (None, 0):
            raise LayerSwapError(
                f"training {name!r} failed (exit code {process.exitcode}); the reason is "
                "above. Finished stages are kept: run the same command again to continue"
            )
    return {name: process for name, process in running.items() if process.exitcode is None}
