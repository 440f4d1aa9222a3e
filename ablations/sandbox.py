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
from pathlib import Path
from typing import Literal

from layerswap_method.errors import LayerSwapError
from layerswap_method.frozen import Frozen

Isolation = Literal["bwrap", "none"]
Status = Literal["passed", "failed", "timeout", "memory", "output"]
_PLACES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/nix/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = """shmget 29 194, shmat 30 196, semget 64 190, msgget 68 186, mount 165 40, unshare 272 97,
setns 308 268, bpf 321 280, add_key 248 217, request_key 249 218, keyctl 250 219, userfaultfd 323
282, io_uring_setup 425 425, io_uring_enter 426 426, perf_event_open 298 241"""
_REFUSED = {name: (int(x86), int(arm)) for name, x86, arm in map(str.split, _CALLS.split(","))}


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
        verdict = run_program(source, "", 10, 1 << 29, 1 << 16, held=True)
    except LayerSwapError as error:
        return error.message
    return None if verdict.status == "passed" else f"{verdict.status}: {verdict.detail}"


def run_program(
    source: str, tests: str, time_s: float, memory_bytes: int, output_bytes: int, *, held: bool
) -> ProgramVerdict:
    """Run `source`, then the trusted `tests` in the same module; threads may call this at once.

    Limits: `time_s` of CPU, rounded up, and three times that of wall time; `memory_bytes` of each
    process, 128 MiB or more; `output_bytes` printed or in a file. bwrap holds it, if it is `held`.
    Raises `LayerSwapError` when the sandbox itself fails.
    """
    # The kernel counts no process of root's: there the program gets a user number of its own.
    user = 61184 + secrets.randbelow(4336) if held and os.geteuid() == 0 else None
    limits = {"CPU": -int(-time_s // 1), "AS": memory_bytes, "FSIZE": output_bytes + 1}
    limits |= {"NOFILE": 64, "CORE": 0, "MSGQUEUE": 0}
    if held:
        limits["NPROC"] = 16
    request = {"source": source, "tests": tests, "limits": limits, "user": user}
    signs = b""
    token = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        output, rules = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        parent_end, child_end = map(stack.enter_context, socket.socketpair())
        rules.write(_filter() if held else b"")
        rules.seek(0)
        parent_end.sendall(token)
        code = f"import json, os, resource, sys\n{inspect.getsource(_run_inside)}\n_run_inside()"
        python = [os.path.realpath(sys.executable), "-I", "-S", "-u", "-c", code]
        command = [*python, str(child_end.fileno())]
        if held:
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
    options = f"--die-with-parent --new-session --hostname sandbox --seccomp {rules} --cap-drop ALL"
    options += " --unshare-ipc --unshare-pid --unshare-net --unshare-uts"
    # Root needs no user namespace, and loses these rights when the program changes its user.
    options += " --unshare-user" if user is None else " --cap-add CAP_SETUID --cap-add CAP_SETGID"
    command = [shutil.which("bwrap") or "bwrap", *options.split()]
    python = [os.path.realpath(sys.executable), f"{sys.base_prefix}/lib"]
    for path in (*_PLACES, *python, *_DEVICES, "/etc/ld.so.cache"):
        for above in reversed(Path(path).parents[:-1]):
            command += ["--dir", str(above)]  # bwrap's own would be closed to other users
        command += ["--dev-bind-try" if path in _DEVICES else "--ro-bind-try", path, path]
    command += ["--perms", "0777", "--size", str(64 << 20), "--tmpfs", "/work"]
    return [*command, "--remount-ro", "/", "--chdir", "/work", "--"]


def _filter() -> bytes:
    """Return seccomp's rules as classic BPF; a refused call fails with EPERM."""
    index = [*_ARCHITECTURES].index(platform.machine())
    allow, refuse, missing, kill = 0x7FFF0000, 0x50001, 0x50026, 1 << 31
    load, equal, at_least, has, end = 0x20, 0x15, 0x35, 0x45, 0x06
    rules = [(load, 0, 0, 4), (equal, 1, 0, _ARCHITECTURES[platform.machine()]), (end, 0, 0, kill)]
    rules += [(load, 0, 0, 0), (at_least, 0, 1, 1 << 30), (end, 0, 0, kill)]  # x32: other numbers
    for numbers in _REFUSED.values():
        rules += [(equal, 0, 1, numbers[index]), (end, 0, 0, refuse)]
    rules += [(equal, 0, 1, 435), (end, 0, 0, missing)]  # clone3: libc takes clone instead
    # Sockets only of this machine, clone only without a user namespace.
    checks = {(41, 198): (equal, 1, 0, socket.AF_UNIX), (56, 220): (has, 0, 1, 0x10000000)}
    for numbers, check in checks.items():
        rules += [(equal, 0, 4, numbers[index]), (load, 0, 0, 16), check]
        rules += [(end, 0, 0, refuse), (end, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", *rule) for rule in (*rules, (end, 0, 0, allow)))


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
