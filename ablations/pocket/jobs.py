"""Training jobs in processes of their own. Knows how to run them; not when they are needed.

Every job runs in a spawned process on one torch thread, so the bytes do not depend on the
threads or random state of the caller, and two experts can train side by side.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ablations.machine.lifetime import end_with_parent
from ablations.pocket.curriculum import Job, job_batches
from ablations.pocket.progress import Progress
from ablations.pocket.stages import write_stage
from layerswap_method.errors import LayerSwapError

LOSS_INTERVAL = 20
"""Steps over which a recorded loss is averaged."""


def _run(job: Job, reports: Any) -> None:
    """Train one model and write its stage; runs in the spawned process."""
    from transformers.utils import logging as transformers_logging

    from ablations.pocket import training

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    training.use_one_thread()

    def fill(folder: Path) -> dict[str, Any]:
        model = (
            training.build_model(job.config.shape, job.seed)
            if job.parent is None
            else training.load_model(job.parent)
        )
        losses = training.train(
            model,
            job_batches(job),
            job.training,
            lambda step, loss: reports.put((job.stage.name, step, loss)),
        )
        training.save_checkpoint(model, folder)
        means = [
            round(sum(part) / len(part), 4)
            for start in range(0, len(losses), LOSS_INTERVAL)
            for part in [losses[start : start + LOSS_INTERVAL]]
        ]
        return {"seed": job.seed, "loss_interval_steps": LOSS_INTERVAL, "losses": means}

    write_stage(job.stage, fill)


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job], *, progress: bool) -> None:
    """Train all models, at most one per core at a time.

    Args:
        jobs: independent jobs.
        progress: whether to report steps (a bar on a terminal, log lines elsewhere).

    Raises:
        LayerSwapError: a process failed; its traceback stands above on stderr.
    """
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    waiting, running = list(jobs), dict[str, BaseProcess]()
    try:
        with Progress({job.stage.name: job.training.steps for job in jobs}, progress) as shown:
            while waiting or running:
                while waiting and len(running) < available_cores():
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
        for process in running.values():
            process.terminate()
            process.join()
        reports.close()


def _still_running(running: dict[str, BaseProcess]) -> dict[str, BaseProcess]:
    for name, process in running.items():
        if process.exitcode not in (None, 0):
            raise LayerSwapError(
                f"training {name!r} failed (exit code {process.exitcode}); the reason stands "
                "above. Finished stages are kept: run the same command again to go on"
            )
    return {name: process for name, process in running.items() if process.exitcode is None}
