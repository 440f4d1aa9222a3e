"""Runs generated Python where it can do no harm, and says whether its tests have passed.

Knows processes and verdicts; neither tasks nor models. The inside is `ablations.sandbox.worker`.

A program runs in a fresh ``python -I -S`` (standard library only) with nothing in its environment,
nothing on its standard input, an empty working folder, and limits on CPU time, wall time, memory,
output, file size, open files, processes. `bwrap` (bubblewrap) holds it in namespaces: no network,
no other process and no other file exists for it than a read-only Python and its folder. All it
has started ends with it, and it ends with the evaluation.

Where bwrap does not work, nothing is run, unless the user chooses the isolation ``none`` because
his container is the sandbox: then there are the limits, and nothing else.

Not protected: memory and CPU time are limited per process, of which there may be 16; a hole in
the kernel; and, in one process with the code they test, the tests themselves against a program
written to deceive this very harness (see `worker`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import Literal

from ablations.sandbox.watch import ProgramVerdict, end_all, ends_within, judge
from layerswap_method.errors import InputError, LayerSwapError

Isolation = Literal["bwrap", "none"]

MAX_PROCESSES = 16
"""Processes and threads of one program."""

_WORKER = Path(__file__).with_name("worker.py")
_READABLE = (
    *("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store"),
    *("/usr/share/zoneinfo", "/etc/ld.so.cache"),
)
"""Where shared libraries are on the distributions; those that exist are shown."""

_ROOT = "/inside"
"""Where root has the same once more: its worker makes that the root."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_FOLDER_BYTES = 64 << 20
_SAID_BYTES = 2000
_USERS = range(61184, 65520)
"""Numbers that no distribution gives to a user: the kernel counts processes by user."""

_WALL_PER_CPU = 3.0
"""Wall time per CPU time: a busy machine should not turn a pass into a timeout."""

_chosen: ContextVar[Isolation] = ContextVar("isolation", default="bwrap")


class RunCode(str):
    """The text of a program that was run, and what came of it.

    A text, because lm-eval passes on nothing else from a filter to metric and record.
    """

    verdict: ProgramVerdict

    def __new__(cls, code: str, verdict: ProgramVerdict) -> RunCode:
        """Return `code` with its `verdict`."""
        made = super().__new__(cls, code)
        made.verdict = verdict
        return made


@contextlib.contextmanager
def code_isolation(isolation: Isolation) -> Iterator[None]:
    """Have programs held by `isolation` while the body runs (in this thread)."""
    token = _chosen.set(isolation)
    try:
        yield
    finally:
        _chosen.reset(token)


class NoIsolation(InputError):
    """Nothing on this machine can hold a generated program."""


def find_isolation(isolation: Isolation | None = None) -> Isolation:
    """Return what holds programs, proven to work.

    Args:
        isolation: what is to hold them; None for what `code_isolation` says.

    Raises:
        NoIsolation: when it is bwrap and that does not work here.
    """
    isolation = isolation or _chosen.get()
    if isolation == "bwrap" and (failure := probe()) is not None:
        raise NoIsolation(
            f"generated code cannot be isolated on this machine ({failure}), so it is not run; "
            "install bubblewrap (bwrap 0.8 or newer) where Linux allows user namespaces, or use "
            "--code-isolation none if this container is the sandbox"
        )
    return isolation


def describe_isolation(isolation: Isolation) -> str:
    """Return the Python of the programs and what holds them, in one line."""
    words = {
        "bwrap": "generated code runs under bwrap: no network, no files, no processes",
        "none": "generated code runs WITHOUT ISOLATION, only with limits (--code-isolation none)",
    }
    return f"Python {platform.python_version()}: {words[isolation]}"


@functools.cache
def probe() -> str | None:
    """Return why bwrap does not hold a program on this machine, or None if it does.

    The program must be able to import what programs import, and must fail to reach a socket that
    this process listens on.
    """
    if shutil.which("bwrap") is None:
        return "there is no bwrap"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = _PROBE.format(port=listener.getsockname()[1])
        try:
            verdict = run_program(
                source, time_s=10, memory_bytes=1 << 29, output_bytes=1 << 16, isolation="bwrap"
            )
        except LayerSwapError as error:
            return error.message
    return None if verdict.status == "passed" else f"{verdict.status}: {verdict.detail}"


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


def run_program(
    source: str,
    *,
    tests: str = "",
    time_s: float,
    memory_bytes: int,
    output_bytes: int,
    isolation: Isolation | None = None,
) -> ProgramVerdict:
    """Run `source`, then `tests` in the same module, and return whether both came to their end.

    May be called from several threads at once. Nothing of it is left when it returns.

    Args:
        source: Python that is not trusted. Runs as a module that is not ``__main__``.
        tests: Python that is (assertions). Compiled before `source` runs; an error of the sandbox
            where they are no Python.
        time_s: CPU seconds, rounded up to whole ones; three times that of wall time, in which
            a machine that stands still does not count.
        memory_bytes: address space of each of its processes, 128 MiB or more.
        output_bytes: printed in all, and size of each file.
        isolation: what holds it; None for `find_isolation`.

    Raises:
        InputError: when nothing can hold it on this machine.
        LayerSwapError: when the sandbox itself fails.
    """
    held = (isolation or find_isolation()) == "bwrap"
    cpu_s = math.ceil(time_s)
    limits = {
        "RLIMIT_CPU": (cpu_s, cpu_s + 1),  # a signal, and the end a second later
        "RLIMIT_AS": (memory_bytes,) * 2,
        "RLIMIT_FSIZE": (output_bytes + 1,) * 2,  # of what it prints, too: one byte shows it
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
        # Outside of bwrap, this would count every process of the user.
        **({"RLIMIT_NPROC": (MAX_PROCESSES,) * 2} if held else {}),
    }
    # bwrap gives root no user namespace: then the worker becomes this user.
    user = random.SystemRandom().choice(_USERS) if held and os.geteuid() == 0 else None
    request = {"source": source, "tests": tests, "limits": limits, "root": _ROOT, "user": user}
    nonce = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="layerswap-"))
        asked, output = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        (proof, proof_end), (challenge_end, challenge) = (_open_pipe(stack) for _ in range(2))
        challenge.write(nonce)
        ends = (challenge_end.fileno(), proof_end.fileno())
        program = subprocess.Popen(
            [*(_bwrap(as_root=user is not None) if held else ()), *_python(*ends)],
            stdin=asked,
            stdout=output,
            stderr=output,
            pass_fds=ends,
            cwd="/" if held else folder,
            # Some Pythons find their own library by it. The program sees nothing of it.
            env={key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
            start_new_session=True,
        )
        proof_end.close()
        in_time = False
        try:
            in_time = ends_within(program, time_s * _WALL_PER_CPU)
        finally:
            used_s = end_all(program, is_held=held)
        output.seek(0)
        return judge(
            program.returncode,
            used_s if in_time else math.inf,
            proof.read(_SAID_BYTES),
            output.read(),
            nonce=nonce,
            time_s=time_s,
            output_bytes=output_bytes,
        )


def _open_pipe(stack: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    """Return the reading and the writing end of a new pipe, which `stack` closes."""
    read, write = os.pipe()
    return stack.enter_context(FileIO(read)), stack.enter_context(FileIO(write, "w"))


def _python(*ends: int) -> list[str]:
    """Return the command of the worker, which is given the two pipes."""
    text = _WORKER.read_text(encoding="utf-8")
    return [os.path.realpath(sys.executable), "-I", "-S", "-u", "-c", text, *map(str, ends)]


def _bwrap(*, as_root: bool) -> list[str]:
    """Return bwrap's command up to the program, with an empty `/work` that can be written to."""
    python = Path(sys.executable).resolve()
    own = [str(python), *(f"{root}/lib" for root in (python.parents[1], sys.base_prefix))]
    namespaces = ["ipc", "pid", "net", "uts", *([] if as_root else ["user"])]
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", *(f"--unshare-{each}" for each in namespaces)]
    if as_root:
        for right in ("SETUID", "SETGID", "SYS_CHROOT"):  # gone when the worker changes its user
            command += ["--cap-add", f"CAP_{right}"]
    else:
        command += ["--disable-userns"]
    inside = _ROOT if as_root else ""
    for root in dict.fromkeys(("", inside)):
        for path in dict.fromkeys((*_READABLE, *own, *_DEVICES)):
            for above in reversed(Path(f"{root}{path}").parents[:-1]):
                command += ["--dir", str(above)]  # bwrap's own would be closed to other users
            kind = "--dev-bind-try" if path in _DEVICES else "--ro-bind-try"
            command += [kind, path, f"{root}{path}"]
    command += ["--perms", "0777", "--size", str(_FOLDER_BYTES), "--tmpfs", f"{inside}/work"]
    return [*command, "--chdir", f"{inside}/work", "--remount-ro", "/", "--"]
