"""Folders that hold one finished stage of a build, and a manifest that proves it.

A folder is either whole or absent. It counts as done only while its key and the hashes of all its
files still agree with its manifest.
"""

from __future__ import annotations

import json
import shutil
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
            content = json.loads((self.folder / self.manifest).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def is_done(self) -> bool:
        """Return whether the folder holds this very stage, every file as it was written."""
        manifest = self.read()
        return manifest.get("key") == self.key and manifest.get("files") == self.hashes(self.folder)

    def prepare(self) -> None:
        """Check that the folder may be replaced; remove what a killed build has left of it.

        Raises:
            InputError: if the folder exists and was not written by a build.
        """
        if self.folder.exists() and not (self.folder / self.manifest).exists():
            raise InputError(
                f"{self.folder} exists and was not written by a build (it has no {self.manifest}); "
                "move it away, or build in another folder"
            )
        for partial in self.folder.parent.glob(f".{self.folder.name}.*.partial"):
            shutil.rmtree(partial)

    def write(self, fill: Callable[[Path], Mapping[str, Any] | None]) -> None:
        """Put a new folder in the stage's place; `fill` writes its files, and returns a record."""
        with replaced_folder(self.folder) as fresh:
            record = fill(fresh) or {}
            manifest = {"key": self.key, **record, "files": self.hashes(fresh)}
            text = json.dumps(manifest, indent=2) + "\n"
            (fresh / self.manifest).write_text(text, encoding="utf-8")

    def hashes(self, folder: Path) -> dict[str, str]:
        """Return relative path -> SHA-256 of every file below `folder` but the manifest."""
        return {
            path.relative_to(folder).as_posix(): hash_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != self.manifest
        }
