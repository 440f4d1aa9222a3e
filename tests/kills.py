"""Real programs that are ended by SIGKILL at a chosen moment: runs, merges, training, downloads."""

import os
import subprocess
import time

import psutil

from tests.waiting import wait_for_end, wait_until

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Environment of a program that is killed, and of those that it is compared with."""


def start(command, **options):
    """Start a program in `ENVIRONMENT` and return its process."""
    return subprocess.Popen([*map(str, command)], env=ENVIRONMENT, **options)


def kill_when(process, moment=None, *, after_s=0.0, first=None):
    """Kill a process once `moment` has been true and `after_s` is over; return its exit code.

    Without a moment it is killed while it starts. `first` gets its descendants before that, and may
    kill some of them. No descendant is left when this returns: an engine that outlives its runner
    holds a GPU for nobody. A process that ended before it could be killed has another code than -9.
    """
    family = []
    try:
        if moment is not None:
            wait_until(lambda: moment() or process.poll() is not None, every_s=0.002)
        time.sleep(after_s)
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            family = parent.children(recursive=True)
            if first is not None:
                first(family)
                family += parent.children(recursive=True)
    finally:
        process.kill()  # nothing happens to one that has ended
        process.communicate()
    wait_for_end(family)
    return process.returncode
