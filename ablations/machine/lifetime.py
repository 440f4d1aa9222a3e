"""Ends the descendants of a process together with it."""

from __future__ import annotations

import os
import sys

_WARDEN = """
import os, signal, sys, time
from pathlib import Path

def below(pid):
    for file in Path("/proc", str(pid), "task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from below(child)

ward, descendants = int(sys.argv[1]), set()
print("looking", flush=True)
while os.getppid() == ward:
    descendants = set(below(ward)) - {os.getpid()}
    time.sleep(0.2)
for pid in descendants | {late for pid in descendants for late in below(pid)}:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""

_wards = set[int]()
"""Processes that have a warden: this one, and those that were forked from it."""


def take_descendants_along() -> None:
    """Have everything that this process starts end with it, SIGKILL included.

    vLLM's engine process, for one, does not notice that its parent is gone, and would keep its GPU.
    A small watchdog process outside of the terminal's session lists the descendants of this process
    five times a second, and kills those that are left when this process is gone.
    """
    if os.getpid() in _wards:
        return
    _wards.add(os.getpid())
    read_end, write_end = os.pipe()
    # A Popen would warn of a child that it leaves running: this one ends after its parent.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", _WARDEN, str(os.getpid())],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write_end, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),  # its starter may end before it
        ],
        setsid=True,
    )
    os.close(write_end)
    with open(read_end, "rb") as file:  # noqa: PTH123 - a descriptor
        file.readline()  # it looks from now on
