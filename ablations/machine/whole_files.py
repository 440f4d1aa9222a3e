"""Files and folders that appear whole or not at all, and files of one JSON value a line."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.output import give_folder_mode


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file in the folder of `path`, then rename it.

    The file has the mode that the umask gives; one of `tempfile` only its owner could read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as file:
            file.write(content)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


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


def check_place(path: Path) -> None:
    """Check that a file or folder can come to be at `path`, before hours go into its content.

    Raises:
        InputError: where a file stands in the way, or the folder above may not be written to.
    """
    try:
        path.exists()
    except OSError as error:  # a name too long for the file system
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not above.is_dir():
        raise InputError(f"{path}: cannot be written: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written: no permission to write to {above}")


@contextmanager
def write_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an error of writing in the body, such as a full disk, into one message about `path`.

    Raises:
        LayerSwapError: in its place.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise LayerSwapError(f"{path}: cannot be written: {reason}{advice}") from error


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path` that takes its place when the body ends.

    When the body raises, the new folder vanishes and what was at `path` stays. For an instant
    neither is there: no file system exchanges folders everywhere.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        fresh = holder / path.name
        fresh.mkdir()
        yield fresh
        give_folder_mode(fresh)
        if path.exists():
            path.replace(holder / "replaced")
        fresh.replace(path)
    finally:
        if not path.exists() and (holder / "replaced").exists():
            (holder / "replaced").replace(path)
        shutil.rmtree(holder, ignore_errors=True)
