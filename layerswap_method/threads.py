"""Threads that compute beside each other."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

_TORCHS = threading.Lock()
"""Held while torch's setting for the whole process is another: of two pools that are made at once,
the second would take the first one's for the user's."""


def usable_cores() -> int:
    """Return on how many cores this process may run: fewer than there are in a job of a cluster."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_core_threads(count: int, name: str = "") -> ThreadPoolExecutor:
    """Return threads that run, in each of which torch computes on one core.

    By default each of them has as many OpenMP threads as there are cores. On a block of values they
    wait for each other longer than they compute: on 16 cores that was four times the processor
    time of two, and twice the memory. A thread takes torch's setting over when it first asks for
    it. Set inside the threads, it would become that of all later ones, too.
    """
    import torch

    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    all_run = threading.Barrier(count)

    def take_setting() -> None:
        all_run.wait()
        torch.get_num_threads()

    with _TORCHS:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for started in [pool.submit(take_setting) for _ in range(count)]:
                started.result()
        finally:
            torch.set_num_threads(before)
    return pool
