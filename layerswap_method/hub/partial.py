"""Files of which only some byte ranges are on this machine.

Such a file is sparse: it has its full length, and a hole reads as zeros. So a list next to it has
the ranges that are there, and readers call `check_there` first.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from layerswap_method.errors import InputError
from layerswap_method.hub.cache import BLOBS
from layerswap_method.hub.ranges import Range, join_ranges, lacking

_LIST = ".ranges"
"""End of the name of the list of a partial file."""


class NotDownloaded(InputError):
    """Bytes of partial files are read that were not fetched; `ranges` are those of each file."""

    def __init__(self, message: str, ranges: Mapping[Path, Sequence[Range]]):
        super().__init__(message)
        self.ranges = ranges


def list_of(file: Path) -> Path:
    """Return the file that lists which ranges of a partial file are there, one a line."""
    return file.with_name(file.name + _LIST)


def is_partial(file: Path) -> bool:
    """Return whether a file (no link) may have holes."""
    return file.parent.name == BLOBS and list_of(file).is_file()


def ranges_there(file: Path) -> list[Range]:
    """Return which ranges of a partial file are there."""
    try:
        state = list_of(file).stat()
    except FileNotFoundError:
        return []
    return _read_list(list_of(file), state.st_size, (state.st_ino, state.st_ctime_ns))


def check_there(ranges: Mapping[Path, Sequence[Range]], called: str) -> None:
    """Check that bytes of files, which messages call `called`, are there. Files may be whole."""
    missing = {
        file: spans
        for file, spans in ranges.items()
        if is_partial(file) and lacking(spans, ranges_there(file))
    }
    if missing:
        raise NotDownloaded(
            f"{next(iter(missing))}: {called} was not downloaded; merge from the hub id, or "
            "download the model with hf download",
            missing,
        )


def file_state(file: Path) -> tuple[int, int, int, int]:
    """Return size, times of writing and of change in ns, and inode of a file.

    Of a partial file the times are 0: it is written while others read what is there already.
    """
    state = file.stat()
    times = (0, 0) if is_partial(file.resolve()) else (state.st_mtime_ns, state.st_ctime_ns)
    return state.st_size, *times, state.st_ino


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
    file.parent.mkdir(parents=True, exist_ok=True)
    list_of(file).touch()
    if not has_length(file, length):
        os.truncate(list_of(file), 0)
        with file.open("wb") as opened:
            os.truncate(opened.fileno(), length)
