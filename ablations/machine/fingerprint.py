"""Fingerprints of what a result was computed from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ablations.machine.progress import byte_progress
from layerswap_method.file_names import TOKENIZER_FILES
from layerswap_method.jobs import run_counted_jobs
from layerswap_method.progress import Advance
from layerswap_method.threads import usable_cores

TOKENIZER_DATA = tuple(name for name in TOKENIZER_FILES if not name.endswith(".py"))
"""Files that a tokenizer is made of; its code is never run."""

_CHECKPOINT_FILES = (
    "*.safetensors",
    "*.bin",
    "*.index.json",
    "*config.json",
    "*tokenizer*",
    *TOKENIZER_DATA,
)

_LARGE = 50_000_000
"""Bytes from which on files are read by several threads, with progress."""

_REMEMBERED = 1_000_000
"""Bytes from which on the hash of a file is remembered for other runs."""

_PIECE = 1 << 22
"""Bytes that are hashed at a time: an interrupt waits for no more."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fingerprint_checkpoint(folder: Path, hashes: FileHashes | None = None) -> str:
    """Return a hash of the `checkpoint_files` of a folder, wherever that is."""
    return fingerprint_files(folder, checkpoint_files(folder), hashes)


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
        if not any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts
        )
    }
    return fingerprint_files(folder, paths)


def checksum_of(content: Mapping[str, Any], owner: str = "") -> str:
    """Return a checksum for a JSON object that is stored as a line, as 16 hex digits.

    It is of the values, not of how they are written, and of `owner`: a name that the line belongs
    to and does not contain, such as that of its folder.
    """
    text = json.dumps([owner, content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint_of(**parts: Any) -> str:
    """Return a hash of named parts; the order of the names does not count.

    They are what YAML gives: dates, bytes, sets and keys of several types, too, which JSON lacks.
    """
    try:
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    except TypeError:
        text = json.dumps(_as_json(parts), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _as_json(value: Any) -> Any:
    """Return a value as lists of its type and its parts, in an order of their own."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        pairs = ([_as_json(key), _as_json(part)] for key, part in value.items())
        return ["mapping", sorted(pairs, key=json.dumps)]
    if isinstance(value, (list, tuple)):
        return ["list", *map(_as_json, value)]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(_as_json, value), key=json.dumps)]
    return [type(value).__name__, str(value)]


def fingerprint_files(folder: Path, paths: set[Path], hashes: FileHashes | None = None) -> str:
    """Return a hash of the contents of `paths` and of their names relative to `folder`."""
    files = [path for path in sorted(paths) if path.is_file()]
    file_hashes = (hashes or FileHashes()).of(files)
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{file_hashes[path]}\n".encode())
    return digest.hexdigest()


HASHES = ".sha256.jsonl"
"""Name of the file of `FileHashes` in a folder of answers."""


class FileHashes:
    """SHA-256 of files, which stand in a file of lines: all but small files are read once.

    A file is known by its path, inode, size and the times of its last write and change, so that
    machines that share a disk share its hashes.
    """

    def __init__(self, cache: Path | None = None) -> None:
        """Read the file `cache`; None keeps nothing beyond this object."""
        self._cache = cache
        self._sha256_by_identity: dict[str, str] = {}
        if cache is not None:
            with contextlib.suppress(OSError):
                for line in cache.read_text(encoding="utf-8", errors="replace").splitlines():
                    with contextlib.suppress(ValueError, TypeError, KeyError):  # a killed run's
                        entry = json.loads(line)
                        self._sha256_by_identity[str(entry["file"])] = str(entry["sha256"])

    def unread_bytes(self, paths: Iterable[Path]) -> int:
        """Return how much `of` would read, without the small files that are never remembered."""
        unread = (path.stat().st_size for path in paths if self._remembered(path) is None)
        return sum(size for size in unread if size >= _REMEMBERED)

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Return path -> SHA-256, as hexadecimal digits; for files of the hub's cache, its claim.

        Several threads read the other files, the largest first so that none is left for the end.
        """
        hashes: dict[Path, str] = {}
        unread: dict[Path, str] = {}
        for path in paths:
            if (sha256 := self._remembered(path)) is not None:
                hashes[path] = sha256
            else:
                unread[path] = _identity(path)
        for path, sha256 in _hash_files([*unread]).items():
            hashes[path] = sha256
            if _identity(path) == unread[path]:
                self._remember(unread[path], sha256, path.stat().st_size)
        return hashes

    def _remembered(self, path: Path) -> str | None:
        return claimed_sha256(path) or self._sha256_by_identity.get(_identity(path))

    def _remember(self, identity: str, sha256: str, size: int) -> None:
        self._sha256_by_identity[identity] = sha256
        if self._cache is not None and size >= _REMEMBERED:
            # A line that a killed run has left unfinished ends before this one.
            line = "\n" + json.dumps({"file": identity, "sha256": sha256})
            with contextlib.suppress(OSError):  # the file is read again then
                self._cache.parent.mkdir(parents=True, exist_ok=True)
                with self._cache.open("ab", buffering=0) as file:
                    file.write(line.encode())  # at once: several runs may share it


def claimed_sha256(path: Path) -> str | None:
    """Return the SHA-256 that the hub claims for a file in its cache; None where it claims none.

    In ``models--*/snapshots/COMMIT/`` a file is a link to ``models--*/blobs/``, and the name there
    is the SHA-256 of a large file. Only that one link counts: from huggingface_hub 2 on the blob
    may be a link itself, to a name of 64 digits that is no SHA-256. An edited file keeps its name.
    """
    if not path.is_symlink():
        return None
    blob = Path(os.path.normpath(path.parent / path.readlink()))
    if path.parent.parent.name == blob.parent.parent.name == "snapshots":
        return claimed_sha256(blob)  # from the folder beside the hub's cache to the hub's own
    snapshots = next((above for above in path.parents if above.name == "snapshots"), None)
    if snapshots is None or not snapshots.parent.name.startswith("models--"):
        return None
    is_blob = blob.parent == Path(os.path.normpath(snapshots.parent / "blobs"))
    return blob.name if is_blob and blob.is_file() and _SHA256.fullmatch(blob.name) else None


def hash_file(path: Path, advance: Callable[[int], object] = lambda count: None) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits; `advance` is called with bytes read."""
    digest = hashlib.sha256()
    piece = bytearray(_PIECE)
    view = memoryview(piece)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(view[:count])
            advance(count)
    return digest.hexdigest()


def _identity(path: Path) -> str:
    state = path.stat()
    parts = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, path.resolve())
    return " ".join(map(str, parts))


def _hash_files(paths: Sequence[Path]) -> dict[Path, str]:
    sizes = {path: path.stat().st_size for path in paths}
    ordered = sorted(paths, key=lambda path: -sizes[path])
    total = sum(sizes.values())
    if total < _LARGE:
        return {path: hash_file(path) for path in ordered}
    hashes: dict[Path, str] = {}

    def hash_one(path: Path, advance: Advance) -> None:
        hashes[path] = hash_file(path, advance)

    with (
        byte_progress("reading the weights", total) as advance,
        ThreadPoolExecutor(min(8, usable_cores())) as pool,
    ):
        run_counted_jobs([partial(hash_one, path) for path in ordered], pool, advance)
    return {path: hashes[path] for path in ordered}
