"""Builds the SmolLM2 testbed: base, data, tasks, experts; each is kept once it is whole.

    runs/smol/base/        SmolLM2-135M-Instruct in float32, and source.json: where it is from
    runs/smol/data/        rows for training
    runs/smol/tasks/       lm-eval tasks
    runs/smol/math_1/ ...  experts, by `layerswap train` from the shipped configurations

The folder is always `runs/smol` of the working directory: the configurations name it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.locks import holder, try_claim
from ablations.machine.progress import Step, tell
from ablations.machine.stages import Stage, remove_partial
from ablations.machine.whole_files import check_place
from ablations.smol.base import Choice, ensure_base
from ablations.smol.data import write_data, write_tasks
from ablations.smol.languages import TARGETS, language_name
from ablations.train.files import read_config
from ablations.train.folder import RECORD
from ablations.train.run import LOCK, check_installed, train_expert

logger = logging.getLogger(__name__)

ROOT = Path("runs/smol")
MANIFEST = "written.json"
VERSION = 1
"""Of data and tasks: raised with every change that can change a byte of them."""


def build_smol(
    languages: Sequence[str] = TARGETS,
    seeds: int = 3,
    *,
    source: Choice = "auto",
    settings: Sequence[str] = (),
) -> list[Path]:
    """Make what is missing in `ROOT` and return the folders of the experts.

    The experts of seed 1 come first, so that there is a pair to look at early. A second build of
    the same folder may run at the same time: it trains the experts that nobody is at.

    Args:
        languages: codes of the language experts to train, of `TARGETS`.
        seeds: experts of each kind.
        source: where the base is to come from.
        settings: ``NAME=VALUE`` in place of what the training configurations say.

    Raises:
        InputError: for what cannot be had, or something in the way.
        LayerSwapError: where training fails.
    """
    check_installed()
    check_place(ROOT / "base")
    tell(Step("base"))
    with _alone():
        found = ensure_base(ROOT / "base", source)
        _ensure("data", write_data)
        _ensure("tasks", lambda folder: write_tasks(folder, (ROOT / "tasks").resolve()))
    logger.info("base: %s (stored as %s)", found.name, found.stored)
    kinds = ["math", *(language_name(code).lower() for code in languages)]
    named = [f"{kind}_{seed}" for seed in range(1, seeds + 1) for kind in kinds]
    _train_all(named, settings)
    return [ROOT / name for name in named]


def _train_all(names: Sequence[str], settings: Sequence[str]) -> None:
    """Train the experts that are not finished; those of another build come last."""
    waiting = [name for name in names if not _is_finished(name)]
    done, began, taken = len(names) - len(waiting), time.monotonic(), 0
    while waiting:
        free = next((name for name in waiting if not _is_taken(ROOT / name)), None)
        if free is None:
            at = ", ".join(f"{name} ({holder(ROOT / name, LOCK)})" for name in waiting)
            logger.info("left to other builds, which are at them: %s", at)
            return
        waiting.remove(free)
        left = _left(time.monotonic() - began, taken, len(waiting) + 1)
        logger.info("%d of %d experts are finished; training %s%s", done, len(names), free, left)
        tell(Step("experts", done, len(names), is_whole=True))
        kind, seed = free.rsplit("_", 1)
        config = read_config(f"smol/{kind}", (f"seed={seed}", *settings))
        train_expert(config, ROOT / free, keep_checkpoints=False)
        done, taken = done + 1, taken + 1
        waiting = [name for name in waiting if not _is_finished(name)]


def _left(elapsed_s: float, trained: int, left: int) -> str:
    """Return how long the rest takes, in words, by the experts trained so far."""
    if not trained:
        return ""
    minutes = round(elapsed_s / trained * left / 60)
    return f"; about {minutes // 60}:{minutes % 60:02d} hours left for all"


def _is_finished(name: str) -> bool:
    try:
        record = json.loads((ROOT / name / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and bool(record.get("finished"))


def _is_taken(folder: Path) -> bool:
    """Return whether another build is at an expert."""
    if not folder.is_dir():
        return False
    claim = try_claim(folder, LOCK)
    if claim is not None:
        claim.release()
    return claim is None


@contextmanager
def _alone() -> Iterator[None]:
    """Hold what all builds of the folder share; wait for another build that holds it."""
    claim = try_claim(ROOT, ".lock")
    if claim is None:
        at = holder(ROOT, ".lock")
        logger.info("waiting for another build to make base, data and tasks in %s (%s)", ROOT, at)
    while claim is None:
        time.sleep(0.5)
        claim = try_claim(ROOT, ".lock")
    try:
        remove_partial(ROOT / "base")
        yield
    finally:
        claim.release()


def _ensure(name: str, fill: Callable[[Path], None]) -> None:
    """Write a folder of generated files unless it is there, every file as it was written.

    Raises:
        InputError: where something else has that name.
    """
    folder = ROOT / name
    key = fingerprint_of(version=VERSION, name=name, folder=str(folder.resolve()))
    stage = Stage(folder, key, MANIFEST)
    stage.prepare()
    if not stage.is_done():
        tell(Step(f"writing {name}"))
        stage.write(fill)
        logger.info("%s: written", folder)
