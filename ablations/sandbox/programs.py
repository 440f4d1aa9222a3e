"""Runs generated Python where it can do no harm, and says whether its tests have passed.

Knows processes and verdicts; neither tasks nor models. The inside is `ablations.sandbox`.

A program runs in a fresh ``python -I -S`` (standard library only) with nothing in its environment,
nothing on its standard input, an empty working folder that is removed afterwards, and limits on
CPU time, wall time, memory, output, file size, open files, processes; it and all it has started
are ended together, daemons too. What holds it is the kernel, in one of two ways:

``namespaces``  no network, no other process and no other file exists for it: it sees a read-only
                Python and its working folder. Where user namespaces are allowed, or for root.
``seccomp``     for containers that forbid those (Docker's default does). No sockets, no signals
                to other processes; with Landlock (Linux 5.13) no file outside Python and the
                folder is read or written. Without Landlock it can read and write whatever the
                user can; the description says so. Root runs it as ``nobody``.

Where neither works (not Linux, or neither x86_64 nor aarch64), nothing is run. Blocking
sockets inside the interpreter would be no third way: one line of ctypes undoes it.

Not protected: memory and CPU time are limited per process, of which there may be 16; a hole in
the kernel; and, in one process with the code they test, the tests themselves against a program
written to deceive this very harness (see `jail.worker`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from ablations.sandbox.verdict import ProgramVerdict
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.frozen import Frozen

logger = logging.getLogger(__name__)

IsolationName = Literal["namespaces", "seccomp"]

_WALL_PER_CPU = 3.0
"""Wall time per CPU time: a busy machine should not turn a pass into a timeout."""

_START_S = 60.0
"""Seconds after its wall time in which a program's supervisor must have answered."""

_LOOK_S = 1.0
"""How long one look for the answer takes. Looks are counted: see `jail.supervisor`."""

_NEEDED_TO_START = ("LD_LIBRARY_PATH",)
"""Of the environment, for Pythons that find their own library by it. The program sees nothing."""

_LEAST_MEMORY = 128 << 20
_WHERE = "sandbox ({}): "

_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from ablations.sandbox.supervisor import main; del sys.path[0]; main()"
)


class ProgramResult(ProgramVerdict):
    """What came of one program, and what it said."""

    output: str = ""
    """The first 2000 bytes that it printed, as text."""


class RunCode(str):
    """The text of a program that was run, and what came of it.

    A text, because lm-eval passes on nothing else from a filter to metric and record.
    """

    verdict: ProgramVerdict

    def __new__(cls, code: str, result: ProgramVerdict) -> RunCode:
        """Return `code` with the verdict of its `result`."""
        made = super().__new__(cls, code)
        made.verdict = ProgramVerdict(status=result.status, detail=result.detail)
        return made


class Isolation(Frozen):
    """How programs are held on this machine."""

    name: IsolationName
    """See the module."""

    restricts_files: bool
    """Whether files outside the working folder and Python are out of reach."""

    reason: str = ""
    """Why it is not a better one; empty where it is the best."""

    def describe(self) -> str:
        """Return what protects this machine, and what does not, in one sentence."""
        if self.name == "namespaces":
            return (
                "generated code runs in namespaces of its own: no network, no files, no processes"
            )
        files = (
            "no files but Python's and its folder (Landlock)"
            if self.restricts_files
            else "but it CAN READ AND WRITE every file that this user can (no Landlock here)"
        )
        return (
            f"generated code runs under seccomp: no sockets, no signals to others, {files}; "
            f"nothing better because of {self.reason}"
        )


def run_program(
    source: str,
    *,
    tests: str = "",
    time_s: float,
    memory_bytes: int,
    output_bytes: int,
    isolation: Isolation | None = None,
) -> ProgramResult:
    """Run `source`, then `tests` in the same module, and return whether both came to their end.

    May be called from several threads at once. Nothing of it is left when it returns.

    Args:
        source: Python that is not trusted. Runs as a module that is not ``__main__``.
        tests: Python that is (assertions). Compiled before `source` runs.
        time_s: CPU seconds, rounded up to whole ones; three times that of wall time, in which
            a machine that stands still does not count.
        memory_bytes: address space of each of its processes, 128 MiB or more.
        output_bytes: printed in all, and size of each file.
        isolation: how it is held; None for the best there is.

    Raises:
        InputError: when this machine can hold no program (see the module).
        LayerSwapError: when the sandbox itself fails.
        ValueError: for a limit out of its range, or tests that are no Python.
    """
    if not time_s > 0 or memory_bytes < _LEAST_MEMORY or output_bytes < 1:
        raise ValueError(
            f"time_s={time_s}, memory_bytes={memory_bytes}, output_bytes={output_bytes}: "
            f"needed are > 0, >= {_LEAST_MEMORY}, >= 1"
        )
    compile(tests, "<tests>", "exec", dont_inherit=True)
    held = isolation or find_isolation()
    verdict = _serve(
        {
            "source": source,
            "tests": tests,
            "time_s": time_s,
            "wall_s": time_s * _WALL_PER_CPU,
            "memory_bytes": memory_bytes,
            "output_bytes": output_bytes,
            "isolation": held.name,
            "restrict_files": held.restricts_files,
        }
    )
    if "error" in verdict:
        raise LayerSwapError(f"{_WHERE.format(held.name)}{verdict['error']}")
    return ProgramResult.model_validate(verdict)


@functools.cache
def find_isolation() -> Isolation:
    """Return the best way to hold a program here, found by trying each on a known program.

    That program must be able to import what programs import, and must fail to reach a socket that
    this process listens on.

    Raises:
        InputError: naming what each way lacks.
    """
    reasons: list[str] = []
    for name, restricts_files in (("namespaces", True), ("seccomp", True), ("seccomp", False)):
        found = Isolation(name=name, restricts_files=restricts_files, reason="; ".join(reasons))
        failure = probe(found)
        if failure is None:
            level = logging.INFO if restricts_files else logging.WARNING
            logger.log(level, "%s", found.describe())
            return found
        reasons.append(
            f"{name}{' with Landlock' * (name == 'seccomp' and restricts_files)}: {failure}"
        )
    listed = "\n".join(f"  - {reason}" for reason in reasons)
    raise InputError(
        "generated code cannot be held on this machine, so none is run:\n"
        f"{listed}\n"
        "Run it on Linux (x86_64 or aarch64), outside a container or in one that allows seccomp."
    )


def probe(isolation: Isolation) -> str | None:
    """Return why `isolation` does not hold a program on this machine, or None if it does."""
    if not sys.platform.startswith("linux"):
        return f"this is {sys.platform}, and needed is Linux"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = _PROBE.format(port=listener.getsockname()[1])
        try:
            result = run_program(
                source,
                time_s=10,
                memory_bytes=512 << 20,
                output_bytes=1 << 16,
                isolation=isolation,
            )
        except LayerSwapError as error:
            return error.message.removeprefix(_WHERE.format(isolation.name))
    return None if result.status == "passed" else f"{result.status}: {result.detail}"


_PROBE = """
import bisect, collections, datetime, decimal, functools, hashlib, heapq, itertools, json, math
import os, random, re, socket, statistics, string, sys, zlib
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
except OSError:
    pass
else:
    raise RuntimeError("a program can reach the network")
assert not os.environ and os.listdir() == []
"""


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    """Hand the request to a fresh supervisor and return its verdict."""
    boot = _BOOT.format(root=str(Path(__file__).parents[2]))
    with (
        tempfile.TemporaryDirectory(prefix="layerswap-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as asked,
    ):
        asked.write(json.dumps(request | {"folder": folder}).encode())
        asked.seek(0)
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-u", "-c", boot],
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={name: os.environ[name] for name in _NEEDED_TO_START if name in os.environ},
            start_new_session=True,
        )
        try:
            said = _wait_for_answer(supervisor, request["wall_s"] + _START_S)
        finally:
            _end(supervisor)
    if said is None:
        return {"error": "no verdict came in time"}
    answer, complaint = said
    try:
        return dict(json.loads(answer))
    except ValueError:
        words = complaint.decode("utf-8", errors="replace").strip().splitlines()
        return {"error": words[-1] if words else f"exit code {supervisor.returncode}"}


def _wait_for_answer(
    supervisor: subprocess.Popen[bytes], seconds: float
) -> tuple[bytes, bytes] | None:
    """Return what a supervisor writes to its two streams; None if that takes too long."""
    for _ in range(math.ceil(seconds / _LOOK_S)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return supervisor.communicate(timeout=_LOOK_S)
    return None


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    """End a supervisor; asked to, it ends what it watches."""
    if supervisor.poll() is None:
        supervisor.terminate()
        try:
            supervisor.wait(5)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
    for pipe in (supervisor.stdout, supervisor.stderr):
        if pipe is not None:
            pipe.close()
