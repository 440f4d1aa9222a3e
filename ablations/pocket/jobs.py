"""Training jobs in processes of their own. Knows how to run them; not when they are needed.

Every job runs in a spawned process on one torch thread, so the bytes do not depend on the
threads or random state of the caller, and two experts can train side by side.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from ablations.pocket import corpora
from ablations.pocket.batches import Batch, draw_batches
from ablations.pocket.config import PocketConfig, Training
from ablations.pocket.progress import Progress
from ablations.pocket.stages import Stage, write_stage
from ablations.pocket.tokenizer import vocabulary
from layerswap_method.errors import LayerSwapError

Role = Literal["base", "task", "language"]
LOSS_INTERVAL = 50


@dataclass(frozen=True)
class Job:
    """One model to train."""

    stage: Stage
    role: Role
    config: PocketConfig
    seed: int
    """Seed of the first weights (base) and of the stream."""
    parent: Path | None
    """Folder of the base an expert starts from; None for the base itself."""

    @property
    def training(self) -> Training:
        """The settings of this job's role."""
        training: Training = getattr(self.config, self.role)
        return training


def derive_seed(*parts: str | int) -> int:
    """Return a 32-bit seed for a named purpose, so that no two streams share one by accident."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def job_batches(job: Job) -> Iterator[Batch]:
    """Return the endless batches of a job."""
    few_shot_share = job.training.few_shot_share
    seed = derive_seed(job.role, job.seed)
    if job.role == "task":
        stream = corpora.task_corpus(seed, few_shot_share=few_shot_share)
    elif job.role == "language":
        stream = corpora.language_corpus(seed, few_shot_share=few_shot_share)
    else:
        stream = corpora.base_corpus(
            seed, swahili_zipf=job.config.swahili_zipf, few_shot_share=few_shot_share
        )
    batches = _batches(stream, job, "batches")
    if job.role != "base":
        return batches
    warmup = _batches(corpora.base_warmup(derive_seed("copying", job.seed)), job, "copying")
    return itertools.chain(itertools.islice(warmup, job.config.copying_steps), batches)


def _batches(stream: corpora.Stream, job: Job, purpose: str) -> Iterator[Batch]:
    return draw_batches(
        stream,
        vocabulary(),
        tokens_per_batch=job.training.tokens_per_batch,
        seed=derive_seed(job.role, purpose, job.seed),
    )


def _run(job: Job, reports: Any) -> None:
    """Train one model and write its stage; runs in the spawned process."""
    from transformers.utils import logging as transformers_logging

    from ablations.pocket import training

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
                try:
                    shown.update(*reports.get(timeout=0.2))
                except queue.Empty:
                    running = _still_running(running)
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
