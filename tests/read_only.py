"""Folders that a program may not write, by permissions, which bind root too, or full ones."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


def without_root():
    """Return what a command begins with so that permissions hold for it, or skip the test."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("permissions do not hold for root, and setpriv is not here to change that")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def with_mount(folder):
    """Return what a command begins with so that it may only read a folder, or skip the test."""
    return _mounting("--ro-bind", folder, folder)


def with_room(folder, nbytes):
    """Return what a command begins with so that a folder is an empty disk of a size, or skip."""
    return _mounting("--size", nbytes, "--tmpfs", folder)


def _mounting(*words):
    command = ["bwrap", "--dev-bind", "/", "/", *map(str, words)]
    if shutil.which("bwrap") is None or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("bubblewrap, which mounts the folder, does not work here")
    return command


@contextmanager
def without_permission(folder):
    """Take the permission to write a folder, and all that is in it, from everybody."""
    paths = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & 0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
