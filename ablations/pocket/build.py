"""Builds a pocket testbed: which stages there are, which are done, in which order. No training.

What the testbed shows: experts made by SFT from one base, merged and evaluated with the real
tools anywhere. The math expert gains English math and forgets some translation, the language
expert gains translation, and merges lie between, far enough apart to be told apart.

What it does not show: the paper's effect. Math in the target language stays near the floor for
most bases (it is never trained on, and a model this small carries little over from English; with
two of twelve exploratory bases the math expert reached .30 and .22, with the others .01 to .12:
ablations/LOG.md). The world is
templated, the model has under half a million weights, and which merge wins says nothing about
real experts.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.locks import try_claim
from ablations.machine.whole_files import write_text
from ablations.pocket.config import PocketConfig
from ablations.pocket.curriculum import Job, Role
from ablations.pocket.jobs import run_jobs
from ablations.pocket.stages import (
    Stage,
    check_replaceable,
    content_key,
    is_done,
    read_manifest,
    remove_partial,
    write_stage,
)
from ablations.pocket.tasks import write_tasks
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

DEFAULT_OUT = Path("runs/pocket")
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
_HERE = Path(__file__).parent
_WORDS = ("lexicon", "world", "exercises")
_LESSONS = (*_WORDS, "corpora", "tokenizer", "batches", "training", "curriculum")


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


def expert_name(role: Role, index: int) -> str:
    """Return the folder name of the `index`-th expert: `task`, `task-1`, `task-2`, ..."""
    return role if index == 0 else f"{role}-{index}"


def _sources(*names: str) -> list[Path]:
    return [_HERE / f"{name}.py" for name in names]


def plan_jobs(root: Path, config: PocketConfig) -> tuple[Job, list[Job]]:
    """Return the job of the base and those of the experts.

    A stage's key covers the configuration it depends on and the source files of the world.
    """
    base_content = {
        "shape": config.shape.model_dump(),
        "training": config.base.model_dump(),
        "copying_steps": config.copying_steps,
        "swahili_zipf": config.swahili_zipf,
        "seed": config.seed,
    }
    base_key = content_key(base_content, _sources(*_LESSONS))
    base = Job(Stage(root / "base", base_key), "base", config, config.seed, None)
    experts: list[Job] = []
    roles: tuple[Role, Role] = ("task", "language")
    for index, seed in enumerate(config.expert_seeds):
        for role in roles:
            training = getattr(config, role).model_dump()
            content = {"base": base_key, "role": role, "training": training, "seed": seed}
            stage = Stage(root / expert_name(role, index), content_key(content, []))
            experts.append(Job(stage, role, config, seed, base.stage.folder))
    return base, experts


def _tasks_stage(root: Path, config: PocketConfig) -> Stage:
    folder = root / "tasks"
    content = {"evaluation": config.evaluation.model_dump(), "folder": str(folder)}
    sources = _sources(*_WORDS, "tasks")
    return Stage(folder, content_key(content, sources))


def build_pocket(
    out: Path = DEFAULT_OUT,
    config: PocketConfig | None = None,
    *,
    progress: bool = True,
    force: bool = False,
) -> PocketPaths:
    """Train what is missing in `out` and return where everything is.

    Args:
        out: folder of the testbed; created if need be.
        config: what to build; None for the quickstart preset.
        progress: whether to report what is being done.
        force: whether to build every stage anew.

    Raises:
        InputError: a folder in the way was not written by a build, or another build is running.
        LayerSwapError: a training process failed.
    """
    config = config or PocketConfig()
    root = Path(out).resolve()
    base, experts = plan_jobs(root, config)
    tasks = _tasks_stage(root, config)
    stages = [base.stage, *(job.stage for job in experts), tasks]
    for stage in stages:
        check_replaceable(stage)
    root.mkdir(parents=True, exist_ok=True)
    claim = try_claim(root, ".lock")
    if claim is None:
        raise InputError(f"another build is writing to {root}; wait for it to end")
    try:
        remove_partial(root)
        missing = [stage for stage in stages if force or not is_done(stage)]
        if progress:
            names = ", ".join(stage.name for stage in missing)
            logger.info(
                "%s: %s", root, f"to build: {names}" if names else "up to date, nothing to do"
            )
        if base.stage in missing:
            run_jobs([base], progress=progress)
        run_jobs([job for job in experts if job.stage in missing], progress=progress)
        if tasks in missing:
            write_stage(tasks, lambda folder: _fill_tasks(folder, tasks.folder, config))
        if missing or not (root / "pocket.json").exists():
            _write_summary(root, config, stages)
    finally:
        claim.release()
    return PocketPaths(root, root / "base", root / "task", root / "language", tasks.folder)


def _fill_tasks(folder: Path, home: Path, config: PocketConfig) -> dict[str, Any]:
    write_tasks(folder, home, config.evaluation)
    return {"seed": config.evaluation.seed}


def _write_summary(root: Path, config: PocketConfig, stages: list[Stage]) -> None:
    """Write `pocket.json`: configuration, versions, and the manifest of every stage."""
    summary = {
        "config": config.model_dump(mode="json"),
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "stages": {stage.name: read_manifest(stage.folder) for stage in stages},
    }
    write_text(root / "pocket.json", json.dumps(summary, indent=2) + "\n")
