"""Runs one program in a child and reaches a verdict on it. Trusted, as the child is not.

Reads a request from standard input, writes a verdict to standard output, both JSON; runs as
``python -I -S``. Knows processes, pipes and time; not what a program is for.

With namespaces there are three processes: this one, the first of the new process namespace
(which watches, and whose end is the end of all), and the program. Without, this one watches.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import signal
import sys
import time
from typing import Any

from ablations.sandbox import kernel, namespaces, restrictions, worker

_KEPT_OUTPUT = 2000
_FOLDER_BYTES = 64 << 20
"""Of the working folder, where it is a file system of its own."""

_LOOK_S = 0.1
"""What one look at a program counts at most: a machine that stood still took the program along."""


def main() -> None:
    """Serve one request; see `ablations.sandbox.programs` for its fields."""
    parent = os.getppid()
    _end_with(parent)
    request = json.loads(sys.stdin.buffer.read())
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    try:
        if request["isolation"] == "namespaces":
            _serve_in_namespaces(request, parent)
        else:
            _serve_in_group(request)
    except (OSError, ImportError) as error:
        _report({"error": str(error)})


def _serve_in_namespaces(request: dict[str, Any], parent: int) -> None:
    processes = restrictions.process_limit(own_user_namespace=True)
    readable = namespaces.leave_shared_namespaces()
    _end_with(parent)  # again: the change of user has forgotten it
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        kernel.die_with_parent(signal.SIGKILL)
        namespaces.enter_new_root(readable, request["folder"], _FOLDER_BYTES)
        _report(_watch(request, lambda: _restrict_inside(request, processes)))
    except OSError as error:
        _report({"error": str(error)})
    finally:
        os._exit(0)


def _serve_in_group(request: dict[str, Any]) -> None:
    kernel.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    restrictions.give_to_nobody(request["folder"])
    os.chdir(request["folder"])
    _report(_watch(request, lambda: _restrict_group(request)))


def _end_with(parent: int) -> None:
    kernel.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the evaluation has ended")


def _restrict_inside(request: dict[str, Any], processes: int) -> None:
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    _limit(request, processes)
    restrictions.restrict_calls()


def _restrict_group(request: dict[str, Any]) -> None:
    os.setpgid(0, 0)
    processes = restrictions.process_limit(own_user_namespace=False)
    restrictions.become_nobody(may_read_all=request["restrict_files"])
    kernel.die_with_parent(signal.SIGKILL)  # after the change of user, which forgets it
    kernel.forbid_new_privileges()
    if request["restrict_files"] and not restrictions.restrict_files(request["folder"]):
        raise OSError("this kernel has no Landlock")
    _limit(request, processes)
    restrictions.restrict_calls()


def _limit(request: dict[str, Any], processes: int) -> None:
    cpu_s = math.ceil(request["time_s"])
    restrictions.limit_resources(cpu_s, request["memory_bytes"], request["output_bytes"], processes)


def _watch(request: dict[str, Any], restrict: worker.Restrict) -> dict[str, Any]:
    """Run the program to its end, or to the end of its time or output; end what it started."""
    output, output_end = os.pipe()
    proof, proof_end = os.pipe()
    challenge_end, challenge = os.pipe()
    program = os.fork()
    if program == 0:
        worker.run(request, restrict, challenge_end, proof_end, output_end)
    nonce = os.urandom(32)  # after the fork: the program has a copy of all that was before
    os.write(challenge, nonce)
    for end in (output_end, proof_end, challenge_end, challenge):
        os.close(end)
    watch = _Watch(program, output, proof, request["output_bytes"])
    try:
        watch.follow(request["wall_s"])
    finally:
        watch.end_all()
    return watch.verdict(nonce, request["time_s"])


class _Watch:
    """What is known of one running program."""

    def __init__(self, program: int, output: int, proof: int, output_bytes: int):
        self._program = program
        self._output_pipe = output
        self._proof_pipe = proof
        self._output_bytes = output_bytes
        self._output = b""
        self._said = b""
        self._output_size = 0
        self._exit: int | None = None
        self._cpu_s = 0.0
        self._is_late = False

    def follow(self, wall_s: float) -> None:
        """Read what the program says until it ends or must be ended."""
        ended = os.pidfd_open(self._program)
        poller = select.poll()
        for descriptor in (ended, self._output_pipe, self._proof_pipe):
            poller.register(descriptor, select.POLLIN)
        waited, now = 0.0, time.monotonic()
        while self._output_size <= self._output_bytes:
            if waited >= wall_s:
                self._is_late = True
                return
            ready = {descriptor for descriptor, _ in poller.poll(_LOOK_S * 1000)}
            before, now = now, time.monotonic()
            waited += min(now - before, _LOOK_S)
            for pipe in {self._output_pipe, self._proof_pipe} & ready:
                if not self._read(pipe):
                    poller.unregister(pipe)
            # The program has ended, and what it had said by then is read.
            if ready == {ended}:
                return

    def end_all(self) -> None:
        """End the program and, where it has a group of its own, all it has started."""
        for end in (os.kill, os.killpg):
            try:
                end(self._program, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # in namespaces it has no group; what is left ends with this process
        _, status, usage = os.wait4(self._program, 0)
        self._exit = os.waitstatus_to_exitcode(status)
        self._cpu_s = usage.ru_utime + usage.ru_stime
        if os.getpid() != 1:
            self._reap_orphans()

    def verdict(self, nonce: bytes, time_s: float) -> dict[str, Any]:
        """Return the status and what explains it."""
        claim = _read_claim(self._said)
        if self._output_size > self._output_bytes or self._exit == -signal.SIGXFSZ:
            return self._result("output", f"wrote more than {self._output_bytes} bytes")
        if self._is_late:
            return self._result("timeout", "its time had passed before it ended")
        if self._exit == 0 and self._said == nonce:
            return self._result("passed", "")
        if self._exit == -signal.SIGXCPU or (self._exit != 0 and self._cpu_s >= time_s):
            return self._result("timeout", f"used its {time_s:g} s of CPU time")
        if claim is not None:
            return self._result(claim["status"], claim["detail"])
        if self._exit is not None and self._exit < 0:
            name = signal.Signals(-self._exit).name
            return self._result("failed", f"ended by {name}")
        return self._result("failed", f"left with exit code {self._exit} before its end")

    def _result(self, status: str, detail: str) -> dict[str, Any]:
        output = self._output.decode("utf-8", errors="replace")
        return {"status": status, "detail": detail, "output": output}

    def _read(self, pipe: int) -> int:
        """Read what is there; return how much, 0 at the end."""
        data = os.read(pipe, 1 << 16)
        if pipe == self._output_pipe:
            self._output_size += len(data)
            self._output += data[: _KEPT_OUTPUT - len(self._output)]
        else:
            self._said = (self._said + data)[: 2 * worker.CLAIM_BYTES]
        return len(data)

    def _reap_orphans(self) -> None:
        """Wait for the rest of the group, whose processes are ours since their parents ended."""
        while True:
            with contextlib.suppress(ProcessLookupError):  # all of it waits to be reaped
                os.killpg(self._program, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _read_claim(said: bytes) -> dict[str, str] | None:
    """Return how the program says it failed, or None. It may claim a failure, but no pass."""
    try:
        claim = json.loads(said)
        status, detail = claim["status"], str(claim["detail"])
    except (ValueError, TypeError, KeyError):
        return None
    if status not in ("failed", "memory", "output"):
        return None
    return {"status": status, "detail": _one_line(detail)}


def _one_line(words: str) -> str:
    """Return what can be printed of `words`, without addresses: they differ from run to run."""
    printable = "".join(each if each.isprintable() else " " for each in words)
    return re.sub(r"\bat 0x[0-9a-f]+", "at 0x...", " ".join(printable.split()))


def _report(verdict: dict[str, Any]) -> None:
    os.write(1, json.dumps(verdict).encode())
