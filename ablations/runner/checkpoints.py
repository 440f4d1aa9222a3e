"""A model of a study as a checkpoint on disk, for as long as it is needed.

mergekit's own program merges it, in a process of its own: what is evaluated is what a user gets who
types the same command.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ablations.machine.progress import Step, tell
from ablations.machine.whole_files import write_text
from ablations.runner.worker import Work
from layerswap_method.errors import LayerSwapError
from layerswap_method.output import PLAN_FILE, REVERT_PLAN_FILE

if TYPE_CHECKING:
    from ablations.runner.engines import StudyEngine

_TAIL_LINES = 15


@contextmanager
def checkpoint_of(engine: StudyEngine, work: Work) -> Iterator[Path]:
    """Yield the folder of the work's checkpoint; what was merged vanishes after."""
    single = engine.single(work.cell.merge)
    if single is not None and single.adapter is None:
        yield single.folder
        return
    tell(Step("merging to disk"))
    place = engine.out / ".work" / work.cell.weights_key
    shutil.rmtree(place, ignore_errors=True)  # of a worker that was killed
    try:
        write_text(place / "recipe.yml", yaml.safe_dump(work.cell.merge, sort_keys=False))
        run_mergekit(place / "recipe.yml", place / "model", log=place.with_suffix(".log"))
        yield place / "model"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def mergekit_yaml() -> list[str]:
    """Return the command of `mergekit-yaml` of this Python environment."""
    program = Path(sys.executable).parent / "mergekit-yaml"
    module = [sys.executable, "-m", "mergekit.scripts.run_yaml"]
    return [str(program)] if program.is_file() else module


def run_mergekit(recipe: Path, folder: Path, *, log: Path) -> None:
    """Merge a recipe into `folder`.

    mergekit keeps the adapters that it has merged into their bases next to `folder`, and takes them
    again even where the adapter has changed since.

    Raises:
        LayerSwapError: when it fails, with the end of its output; all of it is in `log` then.
    """
    adapters = ["--lora-merge-cache", str(folder.with_name("adapters"))]
    done = subprocess.run(
        [*mergekit_yaml(), str(recipe), str(folder), *adapters],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        write_text(log, done.stdout)
        tail = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
        raise LayerSwapError(
            f"mergekit-yaml failed with exit code {done.returncode}; all of its output is in {log}."
            f" It ended with:\n{tail}"
        )


def read_measured(merged: Path) -> dict[str, Any]:
    """Return what a merge of ours measured of the experts' changes, as provenance."""
    for name in (PLAN_FILE, REVERT_PLAN_FILE):
        if (merged / name).is_file():
            return measured_of(json.loads((merged / name).read_text(encoding="utf-8")))
    return {}


def measured_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the record of a merge says of the experts' changes, as provenance."""
    if record.get("merge_method") == "delta_revert":
        return {"measured": {key: record[key] for key in ("base_model", "threshold", "kept")}}
    deltas = record.get("deltas")
    return {} if deltas is None else {"measured": deltas}
