"""Builds a pocket testbed: pretrains a base, has experts trained on it, writes its tasks.

The base is pretrained by `pretraining`, or comes with the package. Its experts are trained as
`layerswap train pocket/math` and `pocket/swahili` train them: by the same code and training files.

What the testbed shows: experts made by SFT from one base, merged and evaluated with the real
tools anywhere. The math expert learns to think before it answers, in English only, and the target
language gains as well; the language expert learns rare words, and no math. Scores lie far from the
floor and far enough apart to be told apart.

What it does not show: real languages or real experts. The world is templated, the model has under
a million weights, and which merge wins says nothing about others. `layerswap pocket claim` asks
whether a swap beats both experts and their soup here; the answer is in ablations/LOG.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.lifetime import end_with_parent
from ablations.machine.locks import try_claim
from ablations.machine.stages import Stage
from ablations.machine.whole_files import told_if_unwritable, write_text
from ablations.pocket import shipped
from ablations.pocket.config import PocketConfig
from ablations.pocket.tasks import write_tasks
from ablations.train.config import TrainConfig, identity_of
from ablations.train.files import read_config
from ablations.train.finish import EXPERTS, HELD_OUT
from ablations.train.run import LOCK, train_expert
from layerswap_method.errors import InputError, LayerSwapError

logger = logging.getLogger(__name__)

VERSION = 2
"""Of the world and the base's training: raised with every change that can change a byte."""

EXPERTS_VERSION = 2
"""Of how experts are trained, beyond what their training file says: raised in the same way."""

MANIFEST = "pocket_stage.json"
DEFAULT_OUT = Path("runs/pocket")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")

CONFIGURATIONS: Mapping[str, str] = {"task": "pocket/math", "language": "pocket/swahili"}
"""Role -> the training file, as `layerswap train` takes it."""


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


@dataclass(frozen=True)
class Job:
    """One folder to make."""

    stage: Stage
    fill: Callable[[Path], Mapping[str, Any]]
    """Writes the files; returns what the manifest records. It is pickled."""


def plan_jobs(root: Path, config: PocketConfig, *, retrain: bool = False) -> list[Job]:
    """Return the jobs of a testbed: `base`, `task`, `language`, `task-1`, ..., `tasks`.

    A stage's key covers what it depends on.
    """
    plan = config.model_dump(include={"shape", "base", "seed"}, exclude_none=True)
    # A setting that bases once had: without it, those that are there would be trained again.
    plan["base"]["train_embeddings"] = True
    base_key = fingerprint_of(version=VERSION, **plan)
    note = None if retrain else shipped.find(base_key)
    if note is not None:
        base_key = fingerprint_of(key=base_key, sha256=note.sha256)
    base = Stage(root / "base", base_key, MANIFEST)
    jobs = [Job(base, partial(fill_base, config=config, ships=note is not None))]
    for index, seed in enumerate(config.expert_seeds):
        for role in CONFIGURATIONS:
            training = expert_config(role, seed, base.folder, config.expert_settings)
            key = fingerprint_of(
                version=EXPERTS_VERSION, base=base_key, settings=identity_of(training)
            )
            stage = Stage(root / (f"{role}-{index}" if index else role), key, MANIFEST)
            jobs.append(Job(stage, partial(fill_expert, config=training)))
    evaluation = config.evaluation
    key = fingerprint_of(
        version=VERSION, evaluation=evaluation.model_dump(), folder=str(root / "tasks")
    )
    tasks = Stage(root / "tasks", key, MANIFEST)
    return [*jobs, Job(tasks, partial(_fill_tasks, home=tasks.folder, config=config))]


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
        LayerSwapError: a training failed.
    """
    config = config or PocketConfig()
    root = Path(out).resolve()
    jobs = plan_jobs(root, config, retrain=retrain)
    root.mkdir(parents=True, exist_ok=True)
    claim = try_claim(root, ".lock")
    if claim is None:
        raise InputError(f"another build is writing to {root}; wait for it to end")
    try:
        for job in jobs:
            job.stage.prepare()
        missing = [job for job in jobs if force or not job.stage.is_done()]
        names = ", ".join(job.stage.name for job in missing)
        logger.info("%s: %s", root, f"to build: {names}" if names else "up to date, nothing to do")
        if missing:
            _run_apart(missing)
        if missing or not (root / "pocket.json").exists():
            _write_summary(root, config, [job.stage for job in jobs])
    finally:
        claim.release()
    return PocketPaths(root, root / "base", root / "task", root / "language", root / "tasks")


def expert_config(role: str, seed: int, base: Path, settings: tuple[str, ...] = ()) -> TrainConfig:
    """Return how an expert is trained: as `layerswap train` would, and nothing but the expert kept.

    Args:
        role: `task` or `language`.
        seed: of the run.
        base: in place of the base that the training file names.
        settings: ``NAME=VALUE`` in place of what the training file says.

    Raises:
        InputError: for settings that it does not have.
    """
    config = read_config(CONFIGURATIONS[role], (f"seed={seed}", *settings))
    # None of these changes a weight; measuring and more checkpoints would cost time.
    trainer = {**config.trainer, "save_strategy": "epoch"}
    return config.model_copy(update={"base": str(base), "measure": False, "trainer": trainer})


def fill_base(folder: Path, *, config: PocketConfig, ships: bool) -> dict[str, Any]:
    """Write the base to `folder`; return its seed and losses, or the name of the shipped file.

    Args:
        folder: an empty one.
        config: the testbed.
        ships: whether the weights come from the package instead of training.
    """
    from ablations.pocket.pretraining import base_batches, build_model, save_checkpoint, train

    model = build_model(config.shape, config.seed)
    if ships:
        shipped.load_into(model)
        save_checkpoint(model, folder)
        return {"seed": config.seed, "shipped": shipped.WEIGHTS.name}
    losses = train(model, base_batches(config), config.base)
    save_checkpoint(model, folder)
    interval = shipped.LOSS_INTERVAL
    parts = [losses[at : at + interval] for at in range(0, len(losses), interval)]
    means = [round(sum(part) / len(part), 4) for part in parts]
    return {"seed": config.seed, "loss_interval_steps": interval, "losses": means}


def fill_expert(folder: Path, *, config: TrainConfig) -> dict[str, Any]:
    """Train an expert into `folder`, an empty one: the checkpoint and `training.json`."""
    train_expert(config, folder, keep_checkpoints=False)
    for file in folder.iterdir():
        # The folder gets another name when it is whole, so a path in it would be wrong.
        if file.name in (EXPERTS, HELD_OUT) or file.name.startswith(LOCK):
            file.unlink()
    return {"seed": config.seed}


def _fill_tasks(folder: Path, *, home: Path, config: PocketConfig) -> dict[str, Any]:
    write_tasks(folder, home, config.evaluation)
    return {"seed": config.evaluation.seed}


def _run_apart(jobs: Sequence[Job]) -> None:
    """Do the jobs one after the other, in a process of their own.

    The bytes then do not depend on the threads, devices and random state of this one.

    Raises:
        LayerSwapError: a job failed; the reason stands above on stderr.
    """
    context = multiprocessing.get_context("spawn")
    level = logging.getLogger("ablations").getEffectiveLevel()
    process = context.Process(target=_run, args=(jobs, level), daemon=True)
    process.start()
    try:
        process.join()
    finally:
        process.terminate()
        process.join()
    if process.exitcode:
        failed = next((job for job in jobs if not job.stage.is_done()), jobs[-1])
        raise LayerSwapError(
            f"making {failed.stage.name!r} failed (exit code {process.exitcode}); the reason is "
            "above. Finished stages are kept: run the same command again to continue"
        )


def _run(jobs: Sequence[Job], level: int) -> None:
    # The same bytes everywhere: on the CPU, though there be a GPU.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    import torch
    from transformers.utils import logging as transformers_logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    end_with_parent()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ablations").setLevel(level)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    # Two threads gain nothing at these sizes, and their order of summation is not fixed.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for job in jobs:
        try:
            with told_if_unwritable(job.stage.folder):
                job.stage.write(job.fill)
        except LayerSwapError as error:
            sys.exit(f"{job.stage.name}: {error}")


def _write_summary(root: Path, config: PocketConfig, stages: list[Stage]) -> None:
    """Write `pocket.json`: configuration, versions, and the manifest of every stage."""
    summary = {
        "config": config.model_dump(mode="json"),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "stages": {stage.name: stage.read() for stage in stages},
    }
    write_text(root / "pocket.json", json.dumps(summary, indent=2) + "\n")
