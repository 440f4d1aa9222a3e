"""Fingerprints of what a result was computed from. Knows bytes; not what they mean."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def fingerprint_folder(folder: Path) -> str:
    """Return a hash of the relative names and contents of every file below `folder`.

    Hidden files and folders (locks, caches, version control) are left out. Dates and the place
    of the folder do not count.
    """
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            whole.update(f"{relative.as_posix()}\0{_file_hash(path)}\n".encode())
    return whole.hexdigest()


def fingerprint_of(**parts: Any) -> str:
    """Return a hash of named parts that JSON can hold; the order of the names does not count."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
