"""Claims on parts of a run folder, so that several runners can share it. Knows files only.

A claim is a `flock` on a file that stays: the kernel gives it up when its holder ends, however
that happens, so no claim is ever stale. On network file systems it works between machines where
the server supports it (NFSv4, Lustre mounted with ``flock``).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from layerswap_method.errors import LayerSwapError


@dataclass(frozen=True)
class Claim:
    """A claim that is held until `release`."""

    descriptor: int
    """Of the locked file."""

    def release(self) -> None:
        """Give the claim up."""
        os.close(self.descriptor)


def try_claim(folder: Path, name: str) -> Claim | None:
    """Return a claim on `name` in `folder`; None while another runner, or claim, holds it.

    Raises:
        OSError: where there is no room for the file.
        LayerSwapError: where the file system cannot lock.
    """
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise LayerSwapError(
            f"{folder}: this file system cannot lock files ({error}); choose an --out on another"
        ) from error
    # On a full disk the claim holds all the same, only its owner is not named.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        os.write(descriptor, json.dumps(owner).encode())
    return Claim(descriptor)


def holder(folder: Path, name: str) -> str:
    """Return who wrote the claim's file last, in words."""
    try:
        owner = json.loads((folder / name).read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another runner"
