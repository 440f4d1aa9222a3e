"""Waiting for what another process does, on machines that now and then stand still."""

import time

import psutil

PATIENCE_S = 120.0
"""Of the waiting process's own time. What is waited for takes seconds at most on a machine that
is not held up; only a test that fails anyway waits so long."""


def wait_until(condition, *, running=None, every_s=0.05):
    """Return the first true value of `condition`; the end of `running` is the end of the waiting.

    Looks are counted, not seconds: a machine that was stopped for a minute uses up one look.
    """
    for _ in range(int(PATIENCE_S / every_s)):
        has_ended = running is not None and running.poll() is not None
        if found := condition():
            return found
        assert not has_ended, f"the process ended before that, with code {running.returncode}"
        time.sleep(every_s)
    raise AssertionError(f"not come true in {PATIENCE_S:.0f} s of waiting")


def wait_for_end(processes):
    """Wait until none of them runs; not every machine's first process reaps what is left to it."""
    left = list(processes)
    wait_until(lambda: not any(map(_runs, left)))


def _runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
