"""Claims on parts of a run folder, so that several runners can share it.

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
from typing import TYPE_CHECKING

from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from filelock import FileLock


@dataclass(frozen=True)
class Claim:
    """A claim that is held."""

    lock: FileLock
    """The kernel's."""

    owner: Path
    """The file that names who holds it."""

    abandoned: str
    """What the last owner wrote there, if it ended without giving the claim up; else ``""``."""

    def release(self) -> None:
        """Give it up."""
        with contextlib.suppress(OSError):
            self.owner.unlink(missing_ok=True)
        self.lock.release()


def try_claim(folder: Path, name: str, note: str = "") -> Claim | None:
    """Return a claim on `name` in `folder`, held until it is released.

    Args:
        folder: of the claims; made where it is missing.
        name: of what is claimed.
        note: a line more for `Claim.abandoned`.

    Returns:
        None while another runner, or claim, holds it.

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
        number = getattr(error, "errno", errno.ENOSYS)
        if number not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise LayerSwapError(
            f"{folder}: this file system cannot lock files; choose an --out on a local disk, on "
            "NFSv4, or on Lustre mounted with flock"
        ) from error
    owner = _holder_file(folder, name)
    claim = Claim(lock, owner, _read(owner))
    # On a full disk the claim holds all the same, only its owner is not named.
    with contextlib.suppress(OSError):
        owner.write_text(
            f"process {os.getpid()} on {socket.gethostname()}\n{note}", encoding="utf-8"
        )
    return claim


def holder(folder: Path, name: str) -> str:
    """Return in words who holds the claim, or held it last."""
    return _read(_holder_file(folder, name)).partition("\n")[0] or "another runner"


def has_owner(folder: Path, name: str) -> bool:
    """Return whether somebody holds the claim, or ended without giving it up."""
    return _holder_file(folder, name).is_file()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _holder_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.holder"
