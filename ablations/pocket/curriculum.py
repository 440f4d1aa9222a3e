"""One model to train: which batches it sees, in which order, from which seeds. No processes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablations.pocket import corpora
from ablations.pocket.batches import Batch, draw_batches
from ablations.pocket.config import PocketConfig, Training
from ablations.pocket.stages import Stage
from ablations.pocket.tokenizer import vocabulary

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
