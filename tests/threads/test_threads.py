"""Threads that compute on one core each, and what torch's setting is after them."""

from concurrent.futures import ThreadPoolExecutor

import torch

from layerswap_method.threads import one_core_threads


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
