"""Watches one running program to its end, and says what came of it.

Knows processes, pipes and time; not how a program is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen

_KEPT_BYTES = 2000
_LOOK_S = 0.1
"""What one look at a program counts at most: a machine that stood still took the program along."""


class ProgramVerdict(Frozen):
    """What came of one program. The same in every run of a program that does the same."""

    status: Literal["passed", "failed", "timeout", "memory", "output"]
    """``passed``: it ran to the end of its tests. Else what stopped it."""

    detail: str
    """One printable line that says why it has not passed, in words; empty if it has."""


class Watch:
    """What is known of one running program."""

    def __init__(
        self,
        program: subprocess.Popen[bytes],
        output: FileIO,
        proof: FileIO,
        output_bytes: int,
        is_held: bool,
    ):
        self._program = program
        self._is_held = is_held
        self._pipes = {output.fileno(): bytearray(), proof.fileno(): bytearray()}
        self._output, self._proof = self._pipes.values()
        self._output_bytes = output_bytes
        self._output_size = 0
        self._cpu_s = 0.0
        self._is_late = False

    def follow(self, wall_s: float) -> None:
        """Read what the program says until it ends or must be ended."""
        ended = os.pidfd_open(self._program.pid)
        poller = select.poll()
        for descriptor in (ended, *self._pipes):
            poller.register(descriptor, select.POLLIN)
        waited, now = 0.0, time.monotonic()
        try:
            while self._output_size <= self._output_bytes:
                if waited >= wall_s:
                    self._is_late = True
                    return
                ready = {descriptor for descriptor, _ in poller.poll(_LOOK_S * 1000)}
                before, now = now, time.monotonic()
                waited += min(now - before, _LOOK_S)
                for pipe in self._pipes.keys() & ready:
                    if not self._read(pipe):
                        poller.unregister(pipe)
                # The program has ended, and what it had said by then is read.
                if ready == {ended}:
                    return
        finally:
            os.close(ended)

    def _read(self, pipe: int) -> int:
        """Read what is there; return how much, 0 at the end."""
        data, kept = os.read(pipe, 1 << 16), self._pipes[pipe]
        kept += data[: _KEPT_BYTES - len(kept)]
        self._output_size += len(data) * (kept is self._output)
        return len(data)

    def end_all(self) -> None:
        """End the program and all it has started, and wait until they are gone.

        The end of bwrap's child, the first process of the namespace, is the end of all in it, and
        bwrap waits for that; whoever ends bwrap does not.
        """
        pid = self._program.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        first = children.read_text().split() if self._is_held else []
        with contextlib.suppress(ProcessLookupError):
            if first:
                os.kill(int(first[0]), signal.SIGKILL)
            else:
                os.killpg(pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._program.pid, 0)
        self._program.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_s = usage.ru_utime + usage.ru_stime

    def verdict(self, nonce: bytes, time_s: float) -> ProgramVerdict:
        """Return the status and what explains it.

        Raises:
            LayerSwapError: when the program was never started.
        """
        if self._proof[:1] != b".":
            words = _one_line(self._output.decode("utf-8", errors="replace"))
            raise LayerSwapError(words or f"bwrap ended with {self._program.returncode}")
        said, code = bytes(self._proof[1:]), self._program.returncode
        # bwrap ends with 128 and the number of the signal.
        number = code - 128 if code > 128 else -code
        if self._output_size > self._output_bytes or number == signal.SIGXFSZ:
            return _verdict("output", f"wrote more than {self._output_bytes} bytes")
        if self._is_late:
            return _verdict("timeout", "its time had passed before it ended")
        if code == 0 and said == nonce:
            return _verdict("passed", "")
        if number == signal.SIGXCPU or (code != 0 and self._cpu_s >= time_s):
            return _verdict("timeout", f"used its {time_s:g} s of CPU time")
        with contextlib.suppress(ValueError, TypeError, KeyError):
            claim = json.loads(said)  # it may claim a failure, but no pass
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
