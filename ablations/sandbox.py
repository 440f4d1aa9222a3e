"""Run generated Python where it can do no harm, and say whether its tests passed.

A program runs in a fresh ``python -I -S`` with limits, an empty environment and an empty folder.
bwrap (bubblewrap) shows it no network, no process and no file but a read-only Python; a seccomp
filter refuses shared memory, keys, io_uring, bpf, namespaces and all but local sockets.
Not protected: limits are per process, of which there may be 16; memory of the kernel for empty
files and folders, about 1 GB of which a program can make until its time is over (only a cgroup
could limit it, which needs more rights); a hole in the kernel; the tests against a program that
knows this file and finds the proof, or returns what equals everything.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import platform
import re
import resource
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen

Isolation = Literal["bwrap", "none"]
Status = Literal["passed", "failed", "timeout", "memory", "output"]
_PLACES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Machine -> its number in seccomp's records (AUDIT_ARCH)."""


class SystemCall(NamedTuple):
    """The number of a system call on each machine."""

    x86_64: int
    aarch64: int


_REFUSED = {
    # Shared memory, semaphores and messages of the whole machine.
    "shmget": SystemCall(29, 194),
    "shmat": SystemCall(30, 196),
    "semget": SystemCall(64, 190),
    "msgget": SystemCall(68, 186),
    # Mounts and namespaces.
    "mount": SystemCall(165, 40),
    "unshare": SystemCall(272, 97),
    "setns": SystemCall(308, 268),
    # Keys, which are no namespace's.
    "add_key": SystemCall(248, 217),
    "request_key": SystemCall(249, 218),
    "keyctl": SystemCall(250, 219),
    # Parts of the kernel in which holes were found.
    "bpf": SystemCall(321, 280),
    "userfaultfd": SystemCall(323, 282),
    "io_uring_setup": SystemCall(425, 425),
    "io_uring_enter": SystemCall(426, 426),
    "perf_event_open": SystemCall(298, 241),
}
"""Calls that fail with EPERM."""

_SOCKET, _CLONE, _CLONE3 = SystemCall(41, 198), SystemCall(56, 220), SystemCall(435, 435)

_CLONE_NEWUSER = 0x10000000
_FIRST_X32_CALL = 1 << 30
"""Calls of x86's 32-bit pointers have other numbers, from this one on."""

# Classic BPF, as in linux/bpf_common.h, and what a filter may return, as in linux/seccomp.h.
_LOAD, _IS_EQUAL, _IS_AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _MISSING, _KILL = 0x7FFF0000, 0x50001, 0x50026, 1 << 31
"""Allow the call; have it fail with EPERM, or with ENOSYS; end the process."""

_CALL_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the record of a call, `struct seccomp_data`."""


class FilterRule(NamedTuple):
    """An instruction of BPF: how many of those that follow are passed over, and its value."""

    code: int
    over_if_true: int
    over_if_false: int
    value: int


class ProgramVerdict(Frozen):
    """The outcome of one program, with one printable line that says why it has not passed."""

    status: Status
    detail: str = ""


@functools.cache
def probe() -> str | None:
    """Return why bwrap does not hold a program on this machine, or None if it does."""
    if shutil.which("bwrap") is None:
        return "there is no bwrap"
    if platform.machine() not in _ARCHITECTURES:
        return f"its filter is for {' and '.join(_ARCHITECTURES)}, not {platform.machine()}"
    source = "import json, math, os, re, socket\nassert not os.environ and not os.listdir()"
    try:
        verdict = run_program(source, "", 10, 1 << 29, 1 << 16, sandboxed=True)
    except LayerSwapError as error:
        return error.message
    return None if verdict.status == "passed" else f"{verdict.status}: {verdict.detail}"


def run_program(
    source: str, tests: str, time_s: float, memory_bytes: int, output_bytes: int, *, sandboxed: bool
) -> ProgramVerdict:
    """Run `source`, then the trusted `tests` in the same module; threads may call this at once.

    Limits: `time_s` of CPU, rounded up, and three times that of wall time; `memory_bytes` of each
    process, 128 MiB or more; `output_bytes` printed or in a file. If it is `sandboxed`, bwrap holds
    it. Raises `LayerSwapError` when the sandbox itself fails.
    """
    # The kernel counts no process of root's: there the program gets a user number of its own.
    user = 61184 + secrets.randbelow(4336) if sandboxed and os.geteuid() == 0 else None
    limits = {"CPU": -int(-time_s // 1), "AS": memory_bytes, "FSIZE": output_bytes + 1}
    limits |= {"NOFILE": 64, "CORE": 0, "MSGQUEUE": 0}
    if sandboxed:
        limits["NPROC"] = 16
    request = {"source": source, "tests": tests, "limits": limits, "user": user}
    signs = b""
    token = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        output, rules = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        parent_end, child_end = map(stack.enter_context, socket.socketpair())
        rules.write(_filter() if sandboxed else b"")
        rules.seek(0)
        parent_end.sendall(token)
        code = f"import json, os, resource, sys\n{inspect.getsource(_run_inside)}\n_run_inside()"
        python = [os.path.realpath(sys.executable), "-I", "-S", "-u", "-c", code]
        command = [*python, str(child_end.fileno())]
        if sandboxed:
            command = [*_bwrap(rules.fileno(), user), *command]
        program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(child_end.fileno(), rules.fileno()),
            cwd=stack.enter_context(tempfile.TemporaryDirectory(prefix="layerswap-")),
            # Some Pythons find their own library by it. The program sees nothing of it.
            env={key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ},
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.communicate(json.dumps(request).encode(), 3 * time_s)
            exit_code = program.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):  # others of its group may be left
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        with contextlib.suppress(BlockingIOError):
            signs = parent_end.recv(64, socket.MSG_DONTWAIT)
        output.seek(0)
        return judge(exit_code, signs, token, output.read(output_bytes + 1), output_bytes, tests)


def judge(
    code: int | None, signs: bytes, token: bytes, printed: bytes, most: int, tests: str
) -> ProgramVerdict:
    """Return the verdict on a program that was given `tests` and `most` bytes of output.

    Its exit `code` (of bwrap 128 plus a signal) is None where its time was over. Its `signs` are a
    dot when it began, and the `token` after the last test.
    """
    signal_number = 0
    if code is not None:
        signal_number = code - 128 if code > 128 else -code
    text = re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", printed.decode("utf-8", errors="replace"))
    last_line = (text.strip().splitlines() or [""])[-1][:400]
    printable = "".join(letter if letter.isprintable() else " " for letter in last_line)
    last_line = " ".join(printable.split())
    if signs[:1] != b".":
        if code is None:
            raise LayerSwapError(
                "the sandbox did not start a program in time: run fewer jobs at once on this "
                "machine"
            )
        raise LayerSwapError(last_line or f"bwrap ended with {code}")
    status: Status = "failed"
    detail = f"ended with exit code {code} before its tests were done"
    if len(printed) > most or signal_number == signal.SIGXFSZ or "[Errno 27]" in last_line:
        status, detail = "output", f"wrote more than {most} bytes"
    elif code is None or signal_number in (signal.SIGXCPU, signal.SIGKILL):
        status, detail = "timeout", "used up its time, or was killed"
    elif code == 0 and signs[1:] == token:
        status, detail = "passed", ""
    elif code == 1 and last_line:
        status = "memory" if last_line == "MemoryError" else "failed"
        lines = [int(line) for line in re.findall(r'File "<tests>", line (\d{1,9})', text)]
        failed_tests = tests.splitlines()[max(lines[-1] - 1, 0) : lines[-1]] if lines else []
        detail = last_line + "".join(f" at `{test.strip()}`" for test in failed_tests)
    elif signal_number in set(signal.Signals):
        detail = f"ended by {signal.Signals(signal_number).name}"
    return ProgramVerdict(status=status, detail=detail)


def _bwrap(rules: int, user: int | None) -> list[str]:
    """Return the command that runs another in bwrap, with seccomp's `rules` from a descriptor."""
    command = [
        shutil.which("bwrap") or "bwrap",
        "--die-with-parent",
        "--new-session",
        *["--hostname", "sandbox"],
        *["--seccomp", str(rules)],
        *["--cap-drop", "ALL"],
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
    ]
    if user is None:
        command += ["--unshare-user"]
    else:  # root needs no user namespace, and loses these rights when the program changes its user
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    python = [os.path.realpath(sys.executable), f"{sys.base_prefix}/lib"]
    for path in (*_PLACES, *python, *_DEVICES, "/etc/ld.so.cache"):
        for above in reversed(Path(path).parents[:-1]):
            command += ["--dir", str(above)]  # bwrap's own would be closed to other users
        command += ["--dev-bind-try" if path in _DEVICES else "--ro-bind-try", path, path]
    command += ["--perms", "0777", "--size", str(64 << 20), "--tmpfs", "/work"]
    return [*command, "--remount-ro", "/", "--chdir", "/work", "--"]


def _filter() -> bytes:
    """Return seccomp's rules for this machine."""
    machine = platform.machine()
    refused = [number_of(call, machine) for call in _REFUSED.values()]
    rules = [
        _load(_ARCHITECTURE),
        *_unless(_IS_EQUAL, _ARCHITECTURES[machine], [_return(_KILL)]),
        _load(_CALL_NUMBER),
        *_when(_IS_AT_LEAST, _FIRST_X32_CALL, [_return(_KILL)]),
        *chain(*(_when(_IS_EQUAL, number, [_return(_REFUSE)]) for number in refused)),
        # libc takes clone instead, whose arguments can be read here.
        *_when(_IS_EQUAL, number_of(_CLONE3, machine), [_return(_MISSING)]),
        *_when(
            _IS_EQUAL,
            number_of(_SOCKET, machine),
            [
                _load(_FIRST_ARGUMENT),
                *_unless(_IS_EQUAL, socket.AF_UNIX, [_return(_REFUSE)]),
                _return(_ALLOW),
            ],
        ),
        *_when(
            _IS_EQUAL,
            number_of(_CLONE, machine),
            [
                _load(_FIRST_ARGUMENT),
                *_when(_HAS_BIT, _CLONE_NEWUSER, [_return(_REFUSE)]),
                _return(_ALLOW),
            ],
        ),
        _return(_ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def number_of(call: SystemCall, machine: str) -> int:
    """Return the number of a system call on a machine."""
    return call.x86_64 if machine == "x86_64" else call.aarch64


def _load(offset: int) -> FilterRule:
    return FilterRule(_LOAD, 0, 0, offset)


def _return(action: int) -> FilterRule:
    return FilterRule(_RETURN, 0, 0, action)


def _when(test: int, value: int, then: Sequence[FilterRule]) -> list[FilterRule]:
    """Return rules that pass over `then` unless what was loaded passes the test."""
    return [FilterRule(test, 0, len(then), value), *then]


def _unless(test: int, value: int, then: Sequence[FilterRule]) -> list[FilterRule]:
    """Return rules that pass over `then` where what was loaded passes the test."""
    return [FilterRule(test, len(then), 0, value), *then]


def _run_inside() -> None:
    """Run the program; this text is what the sandbox gives to Python. No variable has the proof."""
    channel, request = int(sys.argv[1]), json.loads(sys.stdin.buffer.read())
    read, write, leave, trace, run = os.read, os.write, os._exit, sys.settrace, exec
    tests = compile(request["tests"], "<tests>", "exec", dont_inherit=True)
    os.closerange(3, channel)
    os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
    if (user := request["user"]) is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value + (name == "CPU")))
    os.environ.clear()
    write(channel, b".")
    namespace = sys.modules.setdefault("program", type(sys)("program")).__dict__
    run(compile(request["source"], "<program>", "exec", dont_inherit=True), namespace)
    trace(None)  # a trace function can jump over lines
    run(tests, namespace)
    write(channel, read(channel, 64))
    leave(0)
