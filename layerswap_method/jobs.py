"""Jobs in threads that end together: where one fails, the others end at their next piece."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

from layerswap_method.progress import Advance


def run_jobs(jobs: Sequence[Callable[[threading.Event], None]], pool: ThreadPoolExecutor) -> None:
    """Do all jobs in the threads of a pool, which is shut down; raise the first failure.

    Each is given an event that is set where another one fails, and on an interrupt: it then raises
    `InterruptedError` at its next piece, which counts as no failure of its own.
    """
    stopped = threading.Event()
    try:
        futures = [pool.submit(job, stopped) for job in jobs]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        errors = [error for future in done if (error := future.exception()) is not None]
        if errors:
            failures = (error for error in errors if not isinstance(error, InterruptedError))
            raise next(failures, errors[0])
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)


def run_counted_jobs(
    jobs: Sequence[Callable[[Advance], None]], pool: ThreadPoolExecutor, advance: Advance
) -> None:
    """Do all jobs as `run_jobs`; each is given `advance`, and ends where it calls it too late."""

    def run(job: Callable[[Advance], None], stopped: threading.Event) -> None:
        def advance_or_stop(count: int) -> None:
            if stopped.is_set():
                raise InterruptedError
            advance(count)

        job(advance_or_stop)

    run_jobs([partial(run, job) for job in jobs], pool)


def write_at(out: int, content: bytes | memoryview, place: int) -> None:
    """Write all of `content` to the file descriptor `out`, from byte `place` of its file on."""
    remaining = memoryview(content)
    while remaining:
        count = os.pwrite(out, remaining, place)
        remaining, place = remaining[count:], place + count
