"""Builds a pocket testbed: which stages there are, which are done, in which order. No training.

The base is pretrained here, or comes with the package. Its experts are trained as
`layerswap train pocket/math` and `pocket/swahili` train them: by the same code and configurations.

What the testbed shows: experts made by SFT from one base, merged and evaluated with the real
tools anywhere. The math expert learns to think before it answers, in English only, and the target
language gains as well; the language expert learns rare words, and no math. Scores lie far from the
floor and far enough apart to be told apart.

What it does not show: real languages or real experts. The world is templated, the model has under
a million weights, and which merge wins says nothing about others. `layerswap pocket claim` asks
whether a swap beats both experts and their soup here; what was found is in ablations/LOG.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.locks import try_claim
from ablations.machine.stages import Stage, remove_partial
from ablations.machine.whole_files import write_text
from ablations.pocket.tasks import write_tasks
from ablations.pocket_build import shipped
from ablations.pocket_build.base import fill_base
from ablations.pocket_build.config import PocketConfig
from ablations.pocket_build.experts import CONFIGURATIONS, expert_config, fill_expert
from ablations.pocket_build.jobs import Job, run_jobs
from ablations.train.config import identity_of
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

VERSION = 2
"""Of the world and the base's training: raised with every change that can change a byte."""

EXPERTS_VERSION = 2
"""Of how experts are trained, beyond what their configuration says: raised in the same way."""

MANIFEST = "pocket_stage.json"
DEFAULT_OUT = Path("runs/pocket")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")


@dataclass(frozen=True)
class PocketPaths:
    """Where the parts of a testbed are."""

    root: Path
    base: Path
    task: Path
    """The math expert of the first expert seed."""
    language: Path
    """The language expert of the first expert seed."""
    tasks_dir: Path
    """lm-eval's `include_path`."""


def plan_jobs(root: Path, config: PocketConfig, *, retrain: bool = False) -> tuple[Job, list[Job]]:
    """Return the job of the base and those of the experts: `task`, `language`, `task-1`, ...

    A stage's key covers the configuration it depends on.
    """
    plan = config.model_dump(include={"shape", "base", "seed"}, exclude_none=True)
    # A setting that bases once had: without it, those that are there would be trained again.
    plan["base"]["train_embeddings"] = True
    base_key = fingerprint_of(version=VERSION, **plan)
    note = None if retrain else shipped.find(base_key)
    if note is not None:
        base_key = fingerprint_of(key=base_key, sha256=note.sha256)
    base = Job(
        Stage(root / "base", base_key, MANIFEST),
        partial(fill_base, config=config, ships=note is not None),
        config.base.steps,
    )
    experts: list[Job] = []
    for index, seed in enumerate(config.expert_seeds):
        for role in CONFIGURATIONS:
            training = expert_config(role, seed, base.stage.folder, config.expert_settings)
            settings = {k: v for k, v in identity_of(training).items() if k != "base"}
            key = fingerprint_of(version=EXPERTS_VERSION, base=base_key, settings=settings)
            stage = Stage(root / (f"{role}-{index}" if index else role), key, MANIFEST)
            steps = math.ceil(training.samples / training.batch_size)
            experts.append(Job(stage, partial(fill_expert, config=training), steps))
    return base, experts


def build_pocket(
    out: Path = DEFAULT_OUT,
    config: PocketConfig | None = None,
    *,
    force: bool = False,
    retrain: bool = False,
) -> PocketPaths:
    """Train what is missing in `out` and return where everything is.

    Args:
        out: folder of the testbed; created if need be.
        config: what to build; None for the quickstart preset.
        force: whether to build every stage anew.
        retrain: whether to train the base even where it ships with the package.

    Raises:
        InputError: a folder in the way was not written by a build, another build is running, or
            the base that ships with the package is damaged.
        LayerSwapError: a training process failed.
    """
    config = config or PocketConfig()
    root = Path(out).resolve()
    base, experts = plan_jobs(root, config, retrain=retrain)
    folder, evaluation = root / "tasks", config.evaluation.model_dump()
    tasks_key = fingerprint_of(version=VERSION, evaluation=evaluation, folder=str(folder))
    tasks = Stage(folder, tasks_key, MANIFEST)
    stages = [base.stage, *(job.stage for job in experts), tasks]
    for stage in stages:
        stage.check_replaceable()
    root.mkdir(parents=True, exist_ok=True)
    claim = try_claim(root, ".lock")
    if claim is None:
        raise InputError(f"another build is writing to {root}; wait for it to end")
    try:
        remove_partial(root)
        missing = [stage for stage in stages if force or not stage.is_done()]
        names = ", ".join(stage.name for stage in missing)
        logger.info("%s: %s", root, f"to build: {names}" if names else "up to date, nothing to do")
        if base.stage in missing:
            run_jobs([base])
        run_jobs([job for job in experts if job.stage in missing])
        if tasks in missing:
            tasks.write(lambda folder: _fill_tasks(folder, tasks.folder, config))
        if missing or not (root / "pocket.json").exists():
            _write_summary(root, config, stages)
    finally:
        claim.release()
    return PocketPaths(root, root / "base", root / "task", root / "language", tasks.folder)


def _fill_tasks(folder: Path, home: Path, config: PocketConfig) -> Mapping[str, Any]:
    write_tasks(folder, home, config.evaluation)
    return {"seed": config.evaluation.seed}


def _write_summary(root: Path, config: PocketConfig, stages: list[Stage]) -> None:
    """Write `pocket.json`: configuration, versions, and the manifest of every stage."""
    summary = {
        "config": config.model_dump(mode="json"),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "stages": {stage.name: stage.read() for stage in stages},
    }
    write_text(root / "pocket.json", json.dumps(summary, indent=2) + "\n")
