"""Threads that compute on one core each, and what torch's setting is after them."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch

from layerswap_method.threads import one_core_threads, usable_cores


def test_cores_are_counted_where_no_process_is_held_to_some(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert usable_cores() == os.cpu_count()


def test_pools_that_are_made_at_the_same_time_leave_torchs_setting():
    """Two merges in threads of a notebook left torch at one thread for the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as callers:
            for _ in range(20):
                pools = [*callers.map(lambda _: one_core_threads(2), range(4))]
                counts = [pool.submit(torch.get_num_threads).result() for pool in pools]
                assert (torch.get_num_threads(), counts) == (2, [1] * 4)
                for pool in pools:
                    pool.shutdown()
    finally:
        torch.set_num_threads(before)
