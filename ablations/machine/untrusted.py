"""Guards for files that may be a stranger's, such as a run folder that was sent around.

They may be links to elsewhere, pipes that never end, small files that unpack to millions of rows,
and texts that a terminal, a table or a spreadsheet obeys.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ablations.machine.whole_files import numbered_lines
from layerswap_method.errors import InputError, printable

MOST_BYTES = 128_000_000
"""Most bytes that are read at once of a file."""

_MOST_ROWS = 20_000_000
"""Most rows of a table; the largest of the shipped runs has 282,000."""

_MOST_SIGNS = 2_000
"""Most characters of a name of a model, task, metric or filter: each row of a table has them."""


@contextmanager
def open_regular(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file that is no link, no pipe and no device.

    Raises:
        FileNotFoundError: where there is none.
        OSError: where it is something else.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "it is a link, a pipe or a folder, not a file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_regular(path: Path) -> bytes:
    """Return what is in a file of `open_regular`; raises `OSError` for over `MOST_BYTES`, too."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has over {MOST_BYTES:,} bytes")
    return content


def read_regular_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what `read_lines` does, of a file of `open_regular`."""
    with open_regular(path) as file, io.TextIOWrapper(file, "utf-8", newline="\n") as lines:
        yield from numbered_lines(lines)


def check_no_link(path: Path) -> None:
    """Check that a folder inside a run folder is not a link; the run folder itself may be one.

    Raises:
        InputError: where it is.
    """
    if path.is_symlink():
        raise InputError(
            f"{path}: is a link, and those inside a run folder are not followed; put the folder "
            "itself there, or make the whole run folder a link"
        )


def check_rows(file: BinaryIO) -> None:
    """Check that a parquet file may be read: a small one can hold any number of equal rows.

    Raises:
        ValueError: where it holds too many.
    """
    import pyarrow.parquet

    rows = pyarrow.parquet.read_metadata(file).num_rows
    if rows > _MOST_ROWS:
        raise ValueError(f"it holds {rows:,} rows, over {_MOST_ROWS:,}")


def check_name(name: str) -> str:
    """Return a name that a table can hold and no terminal obeys.

    Raises:
        ValueError: for any other.
    """
    if len(name) > _MOST_SIGNS:
        raise ValueError(f"it has a name of {len(name):,} characters: {printable(name[:40])}...")
    if printable(name) != name:
        raise ValueError(f"it has a name with control characters: {printable(name)}")
    return name


def printable_parts(value: Any) -> Any:
    """Return JSON with all of its texts, names of keys among them, as `printable` shows them."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): printable_parts(part) for name, part in value.items()}
    return [printable_parts(part) for part in value] if isinstance(value, list) else value


def spreadsheet_text(text: str) -> str:
    """Return `text` as a cell that a spreadsheet shows; a formula would be computed."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
