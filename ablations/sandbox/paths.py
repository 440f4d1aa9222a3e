"""What a program may read: Python's library and the shared libraries it loads. Nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

_SHARED = (
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/lib64",
    "/nix/store",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
)
"""Where loaders look on the distributions, NixOS among them; those that exist are taken."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""What programs open by name; all harmless."""


def readable_paths() -> list[str]:
    """Return folders and files that a program may read, none inside another one.

    Where Python lives is asked of the running interpreter, whose path has no site-packages
    (``-S``), so a score does not depend on what else is installed.
    """
    own = [*sys.path, f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib"]
    kept: list[str] = []
    for path in (*_SHARED, *own):
        is_inside = any(Path(path).is_relative_to(outer) for outer in kept)
        if Path(path).is_absolute() and Path(path).exists() and not is_inside:
            kept.append(path)
    return kept
