"""Claims on parts of a folder, so that several runners can share it.

A claim is a `filelock`: the kernel gives it up when its holder ends, however that happens, so no
claim is ever stale. On network file systems it works between machines where the server supports
it (NFSv4, Lustre mounted with ``flock``); elsewhere nothing is claimed, and one error explains it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from filelock import FileLock


class Owner(NamedTuple):
    """Who holds a claim, or ended without giving it up."""

    process: str
    """Its process and machine in words."""

    note: str
    """What it noted of itself; see `try_claim`."""


@dataclass(frozen=True)
class Claim:
    """A claim that is held."""

    lock: FileLock
    owner: Path
    """The file that names who holds it."""

    abandoned: Owner | None
    """The last owner, if it ended without giving the claim up."""

    def release(self) -> None:
        """Give it up."""
        with contextlib.suppress(OSError):
            self.owner.unlink(missing_ok=True)
        self.lock.release()


def try_claim(folder: Path, name: str, note: str = "", option: str = "an --out") -> Claim | None:
    """Return a claim on `name` in `folder` (which is made), or None while another holds it.

    `note` is for `Claim.abandoned`, `option` what names the folder.

    Raises:
        OSError: where there is no room for the file.
        LayerSwapError: where the file system cannot lock.
    """
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    # filelock's soft lock, its substitute, outlives whoever is killed.
    lock = FileLock(folder / name, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    except (OSError, NotImplementedError) as error:
        error_number = getattr(error, "errno", errno.ENOSYS)
        if error_number not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise LayerSwapError(
            f"{folder}: this file system cannot lock files; choose {option} on a local disk, on "
            "NFSv4, or on Lustre mounted with flock"
        ) from error
    claim = Claim(lock, _owner_file(folder, name), owner(folder, name))
    with contextlib.suppress(OSError):  # on a full disk the claim has no name
        claim.owner.write_text(
            f"process {os.getpid()} on {socket.gethostname()}\n{note}", encoding="utf-8"
        )
    return claim


def owner(folder: Path, name: str) -> Owner | None:
    """Return the holder of a claim, or one that ended without giving it up; None for neither."""
    try:
        process, _, note = _owner_file(folder, name).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return Owner(process, note) if process else None


def holder(folder: Path, name: str) -> str:
    """Return the holder of the claim in words."""
    held_by = owner(folder, name)
    return "another runner" if held_by is None else held_by.process


def _owner_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.holder"
