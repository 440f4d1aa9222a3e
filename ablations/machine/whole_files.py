"""Files and folders that appear whole or not at all, stages of a build, files of lines."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ablations.machine.fingerprint import hash_file
from ablations.machine.progress import note_finished_work
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.output import check_output, claim_output, listed_files, write_list

LOG = logging.getLogger("layerswap")


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to a temporary file in the folder of `path`, then rename it.

    The file has the mode that the umask gives; one of `tempfile` only its owner could read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
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
        yield from numbered_lines(file)


def numbered_lines(lines: TextIO) -> Iterator[tuple[int, str]]:
    """Yield the lines of an open file that are not blank, with their numbers from 1."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line


def check_place(path: Path) -> None:
    """Check that a file or folder can be made at `path`, before hours go into its content.

    Raises:
        InputError: where a file stands in the way, or the folder above may not be written to.
    """
    try:
        path.exists()
    except OSError as error:  # a name too long for the file system
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not folder.is_dir():
        raise InputError(f"{path}: cannot be written: {folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written: no permission to write to {folder}")


RESULTS = ".layerswap_results.json"
"""The list of the results that commands wrote into a folder, in the folder."""


def check_results(out: Path, names: Iterable[str]) -> None:
    """Check that results may be written to `out`: its files of these `names` are a command's.

    Raises:
        InputError: where the folder cannot be made, or has a file of that name that is the user's.
    """
    check_place(out / RESULTS)
    written = listed_files(out, RESULTS)
    for name in names:
        if name not in written and os.path.lexists(out / name):
            raise InputError(
                f"{out / name}: exists, and layerswap did not write it there; move it away, or "
                "choose another --out"
            )


def list_results(out: Path, names: Iterable[str]) -> None:
    """Add the names of results that were written to the list of their folder."""
    write_list(out, {*names, *listed_files(out, RESULTS)}, RESULTS)


def put_aside(folder: Path, names: Collection[str]) -> None:
    """Make place for files that are moved to `folder` one by one, and list them there.

    A file of one of their names that is not listed is the user's, and gets another name.
    """
    listed = listed_files(folder)
    for path in (folder / name for name in sorted({*names} - listed)):
        if os.path.lexists(path):
            ends = itertools.chain(["before"], (f"before-{n}" for n in itertools.count(2)))
            names_left = (path.with_name(f"{path.name}.{end}") for end in ends)
            target = next(free for free in names_left if not os.path.lexists(free))
            LOG.warning("%s: is not of the run before; it is now %s", path, target.name)
            path.replace(target)
    write_list(folder, [*names, *listed])


class DiskFull(LayerSwapError):
    """The disk is full, or its quota is used up: what is computed from now on would be lost."""


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


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


@dataclass(frozen=True)
class Stage:
    """A folder and the key of its content."""

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
        """Return whether the folder holds this very stage, besides what it did not write.

        Every file of the stage must be as it was written.
        """
        manifest = self.read()
        files = manifest.get("files")
        if manifest.get("key") != self.key or not isinstance(files, dict):
            return False
        is_done = all(
            (self.folder / name).is_file() and hash_file(self.folder / name) == sha256
            for name, sha256 in files.items()
        )
        if is_done:
            note_finished_work()
        return is_done

    def check(self) -> None:
        """Check that the folder may be replaced.

        Raises:
            InputError: if the folder has files that no build has written.
        """
        check_output(self.folder, listing=self.manifest)

    def write(self, fill: Callable[[Path], Mapping[str, Any] | None]) -> None:
        """Put a new folder in the stage's place; `fill` writes its files, and returns a record.

        What is there must be a stage, with nothing but what its manifest lists.
        """
        with claim_output(self.folder, listing=self.manifest) as temporary:
            record = fill(temporary) or {}
            manifest = {"key": self.key, **record, "files": self.hashes(temporary)}
            text = json.dumps(manifest, indent=2) + "\n"
            (temporary / self.manifest).write_text(text, encoding="utf-8")
        note_finished_work()

    def hashes(self, folder: Path) -> dict[str, str]:
        """Return relative path -> SHA-256 of every file below `folder` but the manifest."""
        return {
            path.relative_to(folder).as_posix(): hash_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != self.manifest
        }
