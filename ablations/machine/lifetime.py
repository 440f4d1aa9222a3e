"""Ends the descendants of a process together with it."""

from __future__ import annotations

import os
import subprocess
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

_wardens: dict[int, subprocess.Popen[bytes]] = {}


def take_descendants_along() -> None:
    """Have everything that this process starts end with it, SIGKILL included.

    vLLM's engine process, for one, does not notice that its parent is gone, and would keep its GPU.
    A small watchdog process outside of the terminal's session lists the descendants of this process
    five times a second, and kills those that are left when this process is gone.
    """
    if os.getpid() in _wardens:
        return
    warden = _wardens[os.getpid()] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WARDEN, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # its starter may end before it has begun
        start_new_session=True,
    )
    if warden.stdout is not None:  # it looks from now on
        with warden.stdout:
            warden.stdout.readline()
