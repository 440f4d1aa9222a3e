"""Builds the SmolLM2 testbed: base, data, tasks, experts; each is kept once it is whole.

    runs/smol/base/        SmolLM2-135M-Instruct in float32, and source.json: where it is from
    runs/smol/data/        rows for training
    runs/smol/replay/      rows in English that the base wrote
    runs/smol/tasks/       lm-eval tasks
    runs/smol/math_1/ ...  experts, by `layerswap train` from the shipped configurations

The folder is always `runs/smol` of the working directory: the configurations name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.locks import holder, try_claim
from ablations.machine.progress import Step, tell
from ablations.machine.stages import Stage
from ablations.machine.whole_files import check_place
from ablations.smol.base import Choice, ensure_base, write_replay
from ablations.smol.data import write_data, write_tasks
from ablations.smol.languages import TARGETS, language_name
from ablations.train.config import read_config
from ablations.train.run import check_installed, train_expert
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

ROOT = Path("runs/smol")
VERSION = 2
"""Of data and tasks: raised with every change that can change a byte of them."""


def build_smol(
    languages: Sequence[str] = TARGETS,
    seeds: int = 3,
    *,
    source: Choice = "auto",
    settings: Sequence[str] = (),
) -> list[Path]:
    """Make what is missing in `ROOT` and return the folders of the experts.

    The experts of seed 1 come first, so that there is a pair to look at early.

    Args:
        languages: codes of the language experts to train, of `TARGETS`.
        seeds: experts of each kind; 0 trains none.
        source: where the base is to come from.
        settings: ``NAME=VALUE`` in place of what the training configurations say.

    Raises:
        InputError: for what cannot be had, something in the way, or another build at work.
        LayerSwapError: where training fails.
    """
    check_installed()
    check_place(ROOT / "base")
    claim = try_claim(ROOT, ".lock")
    if claim is None:
        at = holder(ROOT, ".lock")
        raise InputError(f"another build is writing to {ROOT} ({at}); wait for it to end")
    try:
        tell(Step("base"))
        base = ensure_base(ROOT / "base", source)
        logger.info("base: %s (stored as %s)", base["name"], base["stored"])
        _ensure("data", write_data)
        _ensure("replay", lambda folder: write_replay(folder, ROOT / "base"))
        _ensure("tasks", lambda folder: write_tasks(folder, (ROOT / "tasks").resolve()))
        kinds = ["math", *(language_name(code).lower() for code in languages)]
        names = [(kind, seed) for seed in range(1, seeds + 1) for kind in kinds]
        for done, (kind, seed) in enumerate(names):
            tell(Step("experts", done, len(names), is_whole=True))
            logger.info("expert %d of %d: %s_%d", done + 1, len(names), kind, seed)
            config = read_config(f"smol/{kind}", (f"seed={seed}", *settings))
            train_expert(config, ROOT / f"{kind}_{seed}", keep_checkpoints=False)
    finally:
        claim.release()
    return [ROOT / f"{kind}_{seed}" for kind, seed in names]


def _ensure(name: str, fill: Callable[[Path], None]) -> None:
    """Write a folder of generated files unless it is there, every file as it was written.

    Raises:
        InputError: where something else has that name.
    """
    folder = ROOT / name
    key = fingerprint_of(version=VERSION, name=name, folder=str(folder.resolve()))
    stage = Stage(folder, key, "written.json")
    stage.prepare()
    if not stage.is_done():
        tell(Step(f"writing {name}"))
        stage.write(fill)
        logger.info("%s: written", folder)
