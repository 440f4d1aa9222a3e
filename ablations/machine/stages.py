"""Folders that hold one finished stage of a build, and a manifest that proves it. Files only.

A stage is written under a temporary name and renamed when complete, so a folder is either whole
or absent. It counts as done only while its key and the hashes of all its files still agree.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.machine.fingerprint import hash_file
from ablations.machine.whole_files import replaced_folder
from layerswap_method.errors import InputError


@dataclass(frozen=True)
class Stage:
    """A folder and the key of what belongs in it."""

    folder: Path
    key: str

    manifest: str
    """Name of the manifest, which is in the folder. Each build has its own."""

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name

    def read(self) -> dict[str, Any]:
        """Return the manifest, empty if it is absent or unreadable."""
        try:
            found = json.loads((self.folder / self.manifest).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_done(self) -> bool:
        """Return whether the folder holds this very stage, every file as it was written."""
        found = self.read()
        return found.get("key") == self.key and found.get("files") == self.hashes(self.folder)

    def check_replaceable(self) -> None:
        """Raise `InputError` if the folder exists and was not written by a build."""
        if self.folder.exists() and not (self.folder / self.manifest).exists():
            raise InputError(
                f"{self.folder} exists and was not written by a build (it has no {self.manifest}); "
                "move it away, or build in another folder"
            )

    def write(self, fill: Callable[[Path], Mapping[str, Any] | None]) -> None:
        """Fill a new folder and put it in the stage's place.

        Args:
            fill: writes the files into the folder it is given; returns what the manifest records.
        """
        started, cpu_started = time.monotonic(), time.process_time()
        with replaced_folder(self.folder) as fresh:
            record = fill(fresh) or {}
            found = {
                "key": self.key,
                "duration_s": round(time.monotonic() - started, 2),
                "cpu_s": round(time.process_time() - cpu_started, 2),
                **record,
                "files": self.hashes(fresh),
            }
            text = json.dumps(found, indent=2) + "\n"
            (fresh / self.manifest).write_text(text, encoding="utf-8")

    def hashes(self, folder: Path) -> dict[str, str]:
        """Return relative path -> SHA-256 of every file below `folder` but the manifest."""
        return {
            path.relative_to(folder).as_posix(): hash_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != self.manifest
        }


def remove_partial(root: Path) -> None:
    """Remove what builds of `root` that were killed have left."""
    for left in root.glob(".*.partial"):
        shutil.rmtree(left)
