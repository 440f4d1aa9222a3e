"""Fingerprints of what a result was computed from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ablations.machine.progress import Step, show_step
from layerswap_method.output import TOKENIZER_FILES

TOKENIZER_DATA = tuple(name for name in TOKENIZER_FILES if not name.endswith(".py"))
"""Files that a tokenizer is made of; its code is never run."""

_CHECKPOINT_FILES = (
    *("*.safetensors", "*.bin", "*.index.json", "*config.json", "*tokenizer*"),
    *TOKENIZER_DATA,
)

_LARGE = 50_000_000
"""Bytes from which on progress is shown while they are read."""


def fingerprint_checkpoint(folder: Path) -> str:
    """Return a hash of the `checkpoint_files` of a folder, wherever that is."""
    return fingerprint_files(folder, checkpoint_files(folder))


def checkpoint_files(folder: Path) -> set[Path]:
    """Return the files of a checkpoint or adapter that can change the model's answers."""
    return {path for pattern in _CHECKPOINT_FILES for path in folder.glob(pattern)}


def fingerprint_folder(folder: Path) -> str:
    """Return a hash of the relative names and contents of every file below `folder`.

    Hidden files and folders (locks, version control) and Python's caches are left out.
    """
    paths = {
        path
        for path in folder.rglob("*")
        if not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(folder).parts)
    }
    return fingerprint_files(folder, paths)


def fingerprint_of(**parts: Any) -> str:
    """Return a hash of named parts that JSON can hold; the order of the names does not count."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_files(folder: Path, paths: set[Path]) -> str:
    """Return a hash of the contents of `paths` and of their names relative to `folder`."""
    whole, files = hashlib.sha256(), [path for path in sorted(paths) if path.is_file()]
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        if total >= _LARGE:
            show_step(Step(f"reading {folder}", done, total, unit="bytes"))
        name = path.relative_to(folder).as_posix()
        whole.update(f"{name}\0{hash_file(path)}\n".encode())
        done += path.stat().st_size
    return whole.hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
