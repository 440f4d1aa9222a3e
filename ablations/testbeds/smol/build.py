"""Builds the SmolLM2 testbed: base, data, tasks; a finished part is not built again.

    runs/smol/base/        SmolLM2-135M-Instruct in float32, and source.json: where it is from
    runs/smol/data/        rows for training
    runs/smol/replay/      rows in English that the base wrote
    runs/smol/tasks/       lm-eval tasks

The folder is always `runs/smol` of the working directory: the configurations of the experts, which
`layerswap train smol/math` and the like train, name it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ablations.machine.fingerprint import fingerprint_of
from ablations.machine.locks import holder, try_claim
from ablations.machine.progress import Step, show_step
from ablations.machine.whole_files import Stage, check_place
from ablations.testbeds.smol.base import WeightsSource, ensure_base, write_replay
from ablations.testbeds.smol.data import write_data, write_smol_tasks
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

ROOT = Path("runs/smol")
VERSION = 3
"""Version of data and tasks: raised with every change that can change a byte of them."""


def build_smol(source: WeightsSource = "auto") -> None:
    """Make what is missing in `ROOT`; `source` is where the base is to come from.

    Raises `InputError` for a base that cannot be had, something in the way, or another build at
    work.
    """
    check_place(ROOT / "base")
    claim = try_claim(ROOT, ".lock")
    if claim is None:
        raise InputError(
            f"another build is writing to {ROOT} ({holder(ROOT, '.lock')}); wait for it to end"
        )
    try:
        show_step(Step("base"))
        base = ensure_base(ROOT / "base", source)
        logger.info("base: %s (stored as %s)", base["name"], base["stored"])
        _ensure("data", write_data)
        _ensure("replay", lambda folder: write_replay(folder, ROOT / "base"))
        _ensure("tasks", lambda folder: write_smol_tasks(folder, (ROOT / "tasks").resolve()))
    finally:
        claim.release()


def _ensure(name: str, fill: Callable[[Path], None]) -> None:
    """Write a folder of generated files unless it is there, every file as it was written."""
    folder = ROOT / name
    key = fingerprint_of(version=VERSION, name=name, folder=str(folder.resolve()))
    stage = Stage(folder, key, "written.json")
    stage.check()
    if not stage.is_done():
        show_step(Step(f"writing {name}"))
        stage.write(fill)
        logger.info("%s: written", folder)
