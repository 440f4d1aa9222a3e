"""The folder of a run: settings, whole checkpoints, and the expert once it is done. Files only.

    OUT/training.json       settings, data, losses, what was measured
    OUT/checkpoints/...     weights, and of the newest one the optimiser's state
    OUT/                    the expert, when training.json says that it is finished

A checkpoint is whole when it holds `MARK`, which is written last. Others are removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.whole_files import check_place, write_text
from layerswap_method.errors import InputError, LayerSwapError, first_line

RECORD = "training.json"
MARK = "checkpoint.json"
CHECKPOINTS = "checkpoints"
SCHEMA_VERSION = 1

_RESUME = ("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*", "trainer_state.json")
"""What only a run that goes on needs. torch writes some of it as pickles, which transformers reads
as plain tensors and numbers (``weights_only``)."""

_USELESS = ("training_args.bin", "README.md")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A whole checkpoint."""

    folder: Path
    """Weights, config and tokenizer, or an adapter."""

    step: int
    """Optimiser steps done."""

    samples: int
    """Rows seen."""


class TrainingFolder:
    """One run's folder. It belongs to one configuration."""

    def __init__(self, root: Path) -> None:
        """Take the folder; it need not exist."""
        self.root = root
        self.checkpoints_dir = root / CHECKPOINTS

    def open(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a run or go on with one; return what `RECORD` says.

        Args:
            identity: name -> what decides the weights.

        Raises:
            InputError: where the folder holds something else, or a run of other settings.
        """
        check_place(self.root / RECORD)
        record = self.read()
        if not record:
            if self.root.is_dir() and any(not p.name.startswith(".") for p in self.root.iterdir()):
                raise InputError(
                    f"{self.root} exists and is no training folder (it has no {RECORD}); choose "
                    "another --out or move it away"
                )
            record = {"schema_version": SCHEMA_VERSION, "identity": dict(identity)}
            self.write(record)
        _check_same(self.root, record.get("identity", {}), identity)
        return record

    def read(self) -> dict[str, Any]:
        """Return what `RECORD` says; empty where there is none.

        Raises:
            InputError: where it is damaged or of another version.
        """
        path = self.root / RECORD
        if not path.is_file():
            return {}
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read: {first_line(error)}") from error
        if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"{path}: is of another version of this program; choose another --out")
        return record

    def write(self, record: Mapping[str, Any]) -> None:
        """Write `RECORD`.

        Raises:
            LayerSwapError: where that fails.
        """
        with told_if_full(self.root):
            write_text(self.root / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def checkpoints(self) -> list[SavedCheckpoint]:
        """Return the whole checkpoints, the oldest first."""
        found = []
        for path in self.checkpoints_dir.glob(f"checkpoint-*/{MARK}"):
            mark = json.loads(path.read_text(encoding="utf-8"))
            found.append(SavedCheckpoint(path.parent, mark["step"], mark["samples"]))
        return sorted(found, key=lambda each: each.step)

    def resumable(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint that a run can go on from; remove what is not whole."""
        whole = {each.folder for each in self.checkpoints()}
        for folder in self.checkpoints_dir.glob("checkpoint-*"):
            if folder not in whole:
                shutil.rmtree(folder)
        found = [c for c in self.checkpoints() if (c.folder / "trainer_state.json").is_file()]
        return found[-1] if found else None

    def mark(self, step: int, samples: int) -> None:
        """Say that the checkpoint of `step` is whole; older ones keep their weights only."""
        folder = self.checkpoints_dir / f"checkpoint-{step}"
        _remove(folder, _USELESS)
        write_text(folder / MARK, json.dumps({"step": step, "samples": samples}) + "\n")
        for other in self.checkpoints():
            if other.step < step:
                _remove(other.folder, _RESUME)

    def losses(self) -> list[dict[str, float]]:
        """Return step, loss (nats a learned token) and norm of the gradients as last reported."""
        found = self.resumable()
        if found is None:
            return []
        state = json.loads((found.folder / "trainer_state.json").read_text(encoding="utf-8"))
        return [
            {key: entry[key] for key in ("step", "loss", "grad_norm") if key in entry}
            for entry in state["log_history"]
            if "loss" in entry
        ]

    def forget_states(self) -> None:
        """Remove what only a run that goes on needs."""
        for each in self.checkpoints():
            _remove(each.folder, _RESUME)


@contextlib.contextmanager
def told_if_full(path: Path, then: str = "") -> Iterator[None]:
    """Turn an error of writing, such as a full disk, into one message about `path`.

    Args:
        path: what is written.
        then: what to say besides.

    Raises:
        LayerSwapError: in its place.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or first_line(error)
        raise LayerSwapError(f"{path}: cannot be written: {said}{then}") from error


def publish(fresh: Path, out: Path, last: str) -> None:
    """Move the files in `fresh` to `out`, the one that makes it a model (`last`) at the end."""
    for file in sorted(fresh.iterdir(), key=lambda each: each.name == last):
        file.replace(out / file.name)
    fresh.rmdir()


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _remove(folder: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for file in folder.glob(pattern):
            file.unlink(missing_ok=True)


def _check_same(root: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    # As JSON: what was written has no tuples.
    mine = json.loads(json.dumps(here))
    differing = [
        f"{name} is {_short(there.get(name))} there and {_short(mine.get(name))} here"
        for name in dict.fromkeys((*there, *mine))
        if there.get(name) != mine.get(name)
    ]
    if differing:
        raise InputError.from_problems(
            f"{root} holds a run of other settings; choose another --out", differing
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
