"""Watches one running program to its end, and says what came of it.

Knows processes and time; not how a program is started.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen

_LOOK_S = 0.1
"""What one look at a program counts at most: a machine that stood still took the program along."""


class ProgramVerdict(Frozen):
    """What came of one program. The same in every run of a program that does the same."""

    status: Literal["passed", "failed", "timeout", "memory", "output"]
    """``passed``: it ran to the end of its tests. Else what stopped it."""

    detail: str
    """One printable line that says why it has not passed, in words; empty if it has."""


def ends_within(program: subprocess.Popen[bytes], wall_s: float) -> bool:
    """Wait for the end of a program; return whether it came in time."""
    ended = os.pidfd_open(program.pid)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    waited, now = 0.0, time.monotonic()
    try:
        while waited < wall_s:
            if poller.poll(_LOOK_S * 1000):
                return True
            before, now = now, time.monotonic()
            waited += min(now - before, _LOOK_S)
        return False
    finally:
        os.close(ended)


def end_all(program: subprocess.Popen[bytes], *, is_held: bool) -> float:
    """End a program and all it has started, and wait until they are gone; return its CPU seconds.

    The end of bwrap's child, the first process of the namespace, is the end of all in it, and
    bwrap waits for that; whoever ends bwrap does not.
    """
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    first = children.read_text().split() if is_held else []
    with contextlib.suppress(ProcessLookupError):
        if first:
            os.kill(int(first[0]), signal.SIGKILL)
        else:
            os.killpg(program.pid, signal.SIGKILL)
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def judge(
    code: int,
    cpu_s: float,
    said: bytes,
    printed: bytes,
    *,
    nonce: bytes,
    time_s: float,
    output_bytes: int,
) -> ProgramVerdict:
    """Return what came of a program.

    Args:
        code: as `subprocess.Popen.returncode`; bwrap gives 128 and the number of a signal.
        cpu_s: that it has used; infinite where its wall time had passed.
        said: to the pipe of the proof.
        printed: its output, of which one byte more than allowed is kept.
        nonce: the proof.
        time_s: CPU seconds it was given.
        output_bytes: it was allowed.

    Raises:
        LayerSwapError: when the program was never started.
    """
    if said[:1] != b".":
        if cpu_s == math.inf:
            raise LayerSwapError(
                "the sandbox had not started a program when the program's time was over: this "
                "machine is too busy; run fewer jobs on it at once"
            )
        words = _one_line(printed.decode("utf-8", errors="replace"))
        raise LayerSwapError(words or f"bwrap ended with {code}")
    number = code - 128 if code > 128 else -code
    if len(printed) > output_bytes or number == signal.SIGXFSZ:
        return _verdict("output", f"wrote more than {output_bytes} bytes")
    if cpu_s == math.inf:
        return _verdict("timeout", "it ran longer than its time limit")
    if code == 0 and said[1:] == nonce:
        return _verdict("passed", "")
    if number == signal.SIGXCPU or (code != 0 and cpu_s >= time_s):
        return _verdict("timeout", f"used its {time_s:g} s of CPU time")
    with contextlib.suppress(ValueError, TypeError, KeyError):
        claim = json.loads(said[1:])  # it may claim a failure, but no pass
        if claim["status"] in ("failed", "memory", "output"):
            return _verdict(claim["status"], _one_line(str(claim["detail"])))
    if number in list(signal.Signals):
        return _verdict("failed", f"ended by {signal.Signals(number).name}")
    return _verdict("failed", f"left with exit code {code} before its end")


def _verdict(status: Any, detail: str) -> ProgramVerdict:
    return ProgramVerdict(status=status, detail=detail)


def _one_line(words: str) -> str:
    """Return what can be printed of `words`, without addresses: they differ from run to run."""
    printable = "".join(each if each.isprintable() else " " for each in words)
    return re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", " ".join(printable.split()))
