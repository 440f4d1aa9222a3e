"""Files of which only some byte ranges are on this machine.

Such a file is sparse: it has its full length, and a hole reads as zeros. So a list next to it has
the ranges that are there, and readers call `ensure_there` first. When a file is downloaded whole, a
link to the whole file takes its place: who knows its path reads on.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from layerswap_method.errors import InputError
from layerswap_method.hub.cache import BLOBS
from layerswap_method.hub.ranges import Range, join_ranges, lacking

_LIST = ".ranges"
"""End of the name of the list of a partial file."""


Fetch = Callable[[Mapping[Path, Sequence[Range]]], None]
"""Brings byte ranges of partial files to this machine."""

_FETCH: ContextVar[Fetch | None] = ContextVar("fetch", default=None)
"""The function that a reader calls for bytes that are not there.

No argument, as what lies between a download and a reader knows of no holes.
"""


@contextmanager
def fetching_by(fetch: Fetch) -> Iterator[None]:
    """Let readers fetch what they need and what is not there, as long as the body runs."""
    token = _FETCH.set(fetch)
    try:
        yield
    finally:
        _FETCH.reset(token)


def list_of(file: Path) -> Path:
    """Return the file that lists which ranges of a partial file are there, one a line."""
    return file.with_name(file.name + _LIST)


def is_partial(file: Path) -> bool:
    """Return whether a file, as `Path.resolve` names it or did, may have holes."""
    return file.parent.name == BLOBS and list_of(file).is_file() and not file.is_symlink()


def is_named_by_content(file: Path) -> bool:
    """Return whether a file is one of our folder, partial or completed.

    What is there of it never changes, but it is written, or replaced by the whole, while others
    read what is there already.
    """
    return file.parent.name == BLOBS and (file.is_symlink() or list_of(file).is_file())


def ranges_there(file: Path) -> list[Range]:
    """Return which ranges of a partial file are there, all of one in whose place a whole one is."""
    if is_completed(file):
        return [(0, file.stat().st_size)]
    try:
        state = list_of(file).stat()
    except FileNotFoundError:
        return []
    return _read_list(list_of(file), state.st_size, (state.st_ino, state.st_ctime_ns))


def ensure_there(ranges: Mapping[Path, Sequence[Range]], called: str) -> None:
    """Make sure that bytes of files, which messages call `called`, are there.

    Files may be whole. What is missing is fetched, see `fetching_by`. Raises `InputError` where
    nothing fetches it, `LayerSwapError` where that fails.
    """
    missing, fetch = _missing(ranges), _FETCH.get()
    if missing and fetch is not None:
        fetch(missing)
        missing = _missing(missing)
    if missing:
        raise InputError(
            f"{next(iter(missing))}: {called} was not downloaded; merge from the hub id, or "
            "download the model with hf download"
        )


def _missing(ranges: Mapping[Path, Sequence[Range]]) -> dict[Path, Sequence[Range]]:
    """Return the files that lack something of their ranges, with these."""
    return {
        file: spans
        for file, spans in ranges.items()
        if is_partial(file) and lacking(spans, ranges_there(file))
    }


def file_state(file: Path) -> tuple[int, int, int, int]:
    """Return size, times of writing and of change in ns, and inode of a file.

    Of a file in our folder the size alone counts, see `is_named_by_content`.
    """
    state = file.stat()
    blob = file.parent / file.readlink() if file.is_symlink() else file
    if is_named_by_content(blob):
        return state.st_size, 0, 0, 0
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


@functools.lru_cache(maxsize=256)
def _read_list(path: Path, length: int, identity: tuple[int, int]) -> list[Range]:
    """Return the ranges in the first `length` bytes of a list, which only grows.

    Its `identity` tells it from one of the same length that was removed. A process or machine that
    ended may have left half of a line: its first number alone, or a smaller second one, which is
    never too much.
    """
    with path.open("rb") as opened:
        lines = opened.read(length).split(b"\n")
    ranges = []
    for line in lines:
        numbers = line.split()
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            ranges.append((int(numbers[0]), int(numbers[1])))
    return join_ranges(ranges)


def has_length(file: Path, length: int) -> bool:
    """Return whether a file is there and has `length` bytes."""
    return file.is_file() and file.stat().st_size == length


def create(file: Path, length: int) -> None:
    """Make a file of `length` bytes that are all holes, unless it is there.

    The list of a file that is gone or was cut off, as by whoever cleans a disk, says nothing.
    """
    if is_completed(file):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    list_of(file).touch()
    if not has_length(file, length):
        os.truncate(list_of(file), 0)
        file.unlink(missing_ok=True)  # a link to a whole file that is gone
        with file.open("wb") as opened:
            os.truncate(opened.fileno(), length)


def forget(file: Path) -> None:
    """Say of a partial file that nothing of it is there."""
    os.truncate(list_of(file), 0)


def is_completed(file: Path) -> bool:
    """Return whether a link to a whole file is in the place of a partial one."""
    return file.is_symlink() and file.is_file()


def complete(file: Path, whole: Path) -> None:
    """Put a link to a whole file into the place of a partial one, whose room becomes free."""
    link(file, whole)
    list_of(file).unlink(missing_ok=True)


def link(name: Path, target: Path) -> None:
    """Make `name` a link to a file, in place of what is there, unless it leads to that file."""
    if name.is_symlink() and name.resolve() == target.resolve():
        return
    text = os.path.relpath(target, name.parent)
    name.parent.mkdir(parents=True, exist_ok=True)
    part = name.with_name(f".{name.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    part.symlink_to(text)
    part.replace(name)
