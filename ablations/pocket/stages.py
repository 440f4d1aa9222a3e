"""Cached folders: each holds one finished stage and a manifest that proves it. Knows no models.

A stage is written under a temporary name and renamed when complete, so a folder is either whole
or absent. It counts as done only while its key and the hashes of all its files still agree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import hash_file
from ablations.machine.whole_files import replaced_folder
from layerswap_method.errors import InputError

MANIFEST = "pocket_stage.json"


@dataclass(frozen=True)
class Stage:
    """A folder and the key of what belongs in it."""

    folder: Path
    key: str

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name


def hash_files(folder: Path) -> dict[str, str]:
    """Return relative path → SHA-256 of every file below `folder`, the manifest left out."""
    return {
        path.relative_to(folder).as_posix(): hash_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest in `folder`, empty if it is absent or unreadable."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def is_done(stage: Stage) -> bool:
    """Return whether the folder holds this very stage, every file as it was written."""
    manifest = read_manifest(stage.folder)
    return manifest.get("key") == stage.key and manifest.get("files") == hash_files(stage.folder)


def check_replaceable(stage: Stage) -> None:
    """Raise `InputError` if the stage's folder exists and was not written by a build."""
    if stage.folder.exists() and not (stage.folder / MANIFEST).exists():
        raise InputError(
            f"{stage.folder} exists and is not part of a pocket testbed (it has no {MANIFEST}); "
            "choose another --out or move it away"
        )


def write_stage(stage: Stage, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Fill a new folder and put it in the stage's place.

    Args:
        stage: where, and under which key.
        fill: writes the files into the folder it is given; returns what the manifest records.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    with replaced_folder(stage.folder) as fresh:
        record = fill(fresh)
        manifest = {
            "key": stage.key,
            "duration_s": round(time.monotonic() - started, 2),
            "cpu_s": round(time.process_time() - cpu_started, 2),
            **record,
            "files": hash_files(fresh),
        }
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
