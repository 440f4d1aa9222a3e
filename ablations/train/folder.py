"""The folder of a run: settings, checkpoints, and the expert once the run is finished.

OUT/training.json       settings, data, losses, what was measured
OUT/checkpoints/...     of transformers' Trainer; only the newest has the optimiser's state
OUT/                    the expert, when training.json says that it is finished
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import (
    FileHashes,
    checkpoint_files,
    fingerprint_checkpoint,
    fingerprint_files,
)
from ablations.machine.whole_files import check_place, write_errors, write_text
from layerswap_method.errors import InputError, first_line

RECORD = "training.json"
MEASURED = ("relative_norm", "drift")
"""Numbers of an expert that are measured when it is finished, and by `delta --text`."""

BASE_HASH = "base_weights"
"""Key of the identity in a record that has `hash_base`."""

CHECKPOINTS = "checkpoints"
SCHEMA_VERSION = 1

_STATE = "trainer_state.json"
"""The file that the Trainer writes last into a checkpoint: one without it is not whole."""

_RESUME = ("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*", "training_args.bin")
"""Files that only a run that goes on needs. torch writes some of them as pickles, which
transformers reads as plain tensors and numbers (``weights_only``)."""


def hash_base(base: Path, hashes: FileHashes | None = None) -> str:
    """Return a hash of what a training takes from its base.

    It does not take the settings of generation: a training may ask for an end of answers there.
    """
    files = {path for path in checkpoint_files(base) if path.name != "generation_config.json"}
    return fingerprint_files(base, files, hashes)


def is_base(base: Path, stated: str) -> bool:
    """Return whether a training whose record has the hash `stated` began at `base`."""
    hashes = FileHashes()
    # Records were once written with a hash of the settings of generation, too.
    return stated == hash_base(base, hashes) or stated == fingerprint_checkpoint(base, hashes)


def check_record(root: Path, base: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of the run in `root`, which goes on, or a new one; writes nothing.

    A folder with checkpoints belongs to one `base` and one `identity`, name -> setting that decides
    the weights.

    Raises:
        InputError: where the folder holds something else, or a run of other settings.
    """
    check_place(root / RECORD)
    settings = json.loads(json.dumps(identity))  # a record that is read has no tuples
    if not (record := read_training_record(root)) and any(root.glob("[!.]*")):
        raise InputError(
            f"{root} exists and is not a training folder (it has no {RECORD}); choose another "
            "--out or move it away"
        )
    if not record.get("finished") and not whole_checkpoints(root):  # as after a wrong setting
        identity = {**settings, BASE_HASH: hash_base(base)}
        return {"schema_version": SCHEMA_VERSION, "identity": identity}
    stored = record.get("identity", {})
    problems = [*_differences(stored, settings)]
    if not is_base(base, stored.get(BASE_HASH, "")):
        problems.append("the base is another: its weights, config or tokenizer differ")
    InputError.raise_any(f"{root} holds a run of other settings; choose another --out", problems)
    return record


_HASHES = {
    "rows": "the rows are others: a file or a data set has changed, or data names others",
    "adapters": "the experts of the fusion are others: their weights differ",
}
"""Settings that are kept as hashes -> what it means that they differ."""

_DRAWN = ("samples", "held_out", "seed")
"""Settings that the rows follow from."""


def _differences(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what differs, option by option."""
    for name, value in settings.items():  # an older version had more settings
        there = stored.get(name)
        if there == value:
            continue
        if name == "rows" and any(stored.get(each) != settings[each] for each in _DRAWN):
            continue
        if name in _HASHES:
            yield _HASHES[name]
        elif isinstance(value, dict) and isinstance(there, dict):
            for key in sorted({*value, *there}):
                if value.get(key) != there.get(key):
                    yield _difference(f"{name}.{key}", there.get(key), value.get(key))
        else:
            yield _difference(name, there, value)


def _difference(name: str, there: Any, here: Any) -> str:
    texts = ("not set" if value is None else json.dumps(value) for value in (there, here))
    return "{} is {} there and {} here".format(name, *texts)


def read_training_record(root: Path) -> dict[str, Any]:
    """Return the record of the run in `root`; empty where there is none.

    Raises `InputError` where it is damaged or of another version.
    """
    path = root / RECORD
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path}: written by another layerswap version; choose another --out")
    return record


def write_training_record(root: Path, record: Mapping[str, Any]) -> None:
    """Write the record of the run in `root`."""
    with write_errors(root):
        write_text(root / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def step_of(checkpoint: Path) -> int:
    """Return the optimiser steps behind a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


def read_state(checkpoint: Path) -> dict[str, Any] | None:
    """Return the Trainer's state in a checkpoint; None where the checkpoint is not whole."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state


def _checkpoints(root: Path) -> list[Path]:
    names = (root / CHECKPOINTS).glob("checkpoint-*")  # a user may have copied one to another name
    return [path for path in names if path.name.removeprefix("checkpoint-").isdecimal()]


def whole_checkpoints(root: Path) -> list[Path]:
    """Return the whole checkpoints of the run in `root`, the oldest first."""
    return sorted(filter(read_state, _checkpoints(root)), key=step_of)


def remove_partial_checkpoints(root: Path) -> bool:
    """Remove the checkpoints that were not written to the end; return whether there were any."""
    partial = [path for path in _checkpoints(root) if not read_state(path)]
    for path in partial:
        shutil.rmtree(path)
    return bool(partial)


def strip_checkpoints(root: Path, *, keep_newest: bool) -> None:
    """Remove files that only a run that goes on needs, which are a multiple of the weights."""
    checkpoints = whole_checkpoints(root)
    for checkpoint in checkpoints[:-1] if keep_newest else checkpoints:
        for name in _RESUME:
            for file in checkpoint.glob(name):
                file.unlink(missing_ok=True)
    checkpoints[-1].touch()  # the Trainer counts checkpoints by the times of their folders
