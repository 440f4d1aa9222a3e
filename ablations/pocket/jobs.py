"""Models to train: what each sees, from which seeds, and the processes that train them.

Knows how to run jobs; not when they are needed.

Every job runs in a spawned process on one torch thread, so the bytes do not depend on the
threads or random state of the caller, and two experts can train side by side.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from ablations.machine.lifetime import end_with_parent
from ablations.pocket.batches import Batch, draw_batches
from ablations.pocket.config import PocketConfig, Training
from ablations.pocket.corpora import draw_documents
from ablations.pocket.progress import Progress
from ablations.pocket.stages import Stage, write_stage
from ablations.pocket.tokenizer import vocabulary
from layerswap_method.errors import LayerSwapError

LOSS_INTERVAL = 20
"""Steps over which a recorded loss is averaged."""

Role = Literal["base", "task", "language"]


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
    shipped: bool = False
    """Whether the weights come from the package (`shipped.WEIGHTS`) instead of training."""

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
    stream = draw_documents(job.role, derive_seed(job.role, job.seed), rare=job.training.rare_words)
    return draw_batches(
        stream,
        vocabulary(),
        tokens_per_batch=job.training.tokens_per_batch,
        seed=derive_seed(job.role, "batches", job.seed),
        prompt_weight=job.training.prompt_weight,
    )


def _run(job: Job, reports: Any) -> None:
    """Train one model and write its stage; runs in the spawned process."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    from ablations.pocket import shipped, training

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # Two threads gain nothing at these sizes, and their order of summation is not fixed.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    def fill(folder: Path) -> dict[str, Any]:
        if job.shipped:
            model = training.build_model(job.config.shape, job.seed)
            shipped.load_into(model)
            training.save_checkpoint(model, folder)
            return {"seed": job.seed, "shipped": shipped.WEIGHTS.name}
        model = (
            training.build_model(job.config.shape, job.seed)
            if job.parent is None
            else LlamaForCausalLM.from_pretrained(job.parent, dtype=torch.float32)
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


def run_jobs(jobs: Sequence[Job]) -> None:
    """Train all models, which are independent, at most one per core at a time.

    Raises:
        LayerSwapError: a process failed; its traceback stands above on stderr.
    """
    context = multiprocessing.get_context("spawn")
    reports: Any = context.Queue()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    waiting, running = list(jobs), dict[str, BaseProcess]()
    shown = Progress({job.stage.name: job.training.steps for job in jobs})
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
