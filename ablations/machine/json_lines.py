"""Files of one JSON value a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    r"""Yield the lines that are not blank, with their numbers from 1.

    Lines end at ``\n`` only: `str.splitlines` also ends them at U+2028 and the like, which JSON
    leaves as they are.

    Raises:
        OSError: when the file cannot be read.
        UnicodeDecodeError: when it is not UTF-8.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line
