"""Runs a program and its tests in this process, and proves that they ran to their end.

What runs here is not trusted, so nothing here is a verdict: that the tests have passed is proven
by a random number that can be read from a pipe and is written back after the last of them. It is
in no variable, file or argument while the program runs, so no way of leaving early, printing
something or replacing something by name passes for it. A program that knows this very file could
read that pipe by itself; nothing that runs tests beside the code they test can rule that out, nor
can it a result that claims to be equal to everything.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

Restrict = Callable[[], None]

CLAIM_BYTES = 2000
"""Of a message about a failure."""

_PROGRAM, _TESTS = "<program>", "<tests>"
_OUT_OF_MEMORY = b'{"status": "memory", "detail": "MemoryError"}'


def run(
    request: dict[str, Any], restrict: Restrict, challenge: int, proof: int, output: int
) -> NoReturn:
    """Restrict this process, run the request's program and tests, prove it, and exit.

    Args:
        request: with ``source`` and ``tests``.
        restrict: gives up all that the program must not have.
        challenge: pipe with the random number.
        proof: pipe for it, or for a message about a failure.
        output: pipe for what is printed.
    """
    # The names are taken before the program can replace what they stand for.
    read, write, leave, trace, profile = os.read, os.write, os._exit, sys.settrace, sys.setprofile
    execute, describe = exec, _describe
    try:
        tests = compile(request["tests"], _TESTS, "exec", dont_inherit=True, optimize=0)
        source = request["source"]
        _prepare(challenge, proof, output)
        restrict()
        namespace = _new_module().__dict__
        execute(compile(source, _PROGRAM, "exec", dont_inherit=True, optimize=0), namespace)
        trace(None)  # a trace function can jump over lines
        profile(None)
        execute(tests, namespace)
        write(proof, read(challenge, 64))
        leave(0)
    except MemoryError:
        write(proof, _OUT_OF_MEMORY)
    except BaseException as error:
        trace(None)
        write(proof, describe(error, request["tests"]))
    finally:
        leave(1)


def _prepare(challenge: int, proof: int, output: int) -> None:
    """Leave the program its three standard streams and the two pipes, and no trace of this one."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    last = os.sysconf("SC_OPEN_MAX")
    low, high = sorted((challenge, proof))
    for first, end in ((3, low), (low + 1, high), (high + 1, last)):
        os.closerange(first, end)
    os.environ.clear()
    threading.excepthook = threading.__excepthook__
    sys.argv[:] = ["program"]
    for name in [each for each in sys.modules if each.split(".")[0] == "ablations"]:
        del sys.modules[name]
    gc.freeze()


def _new_module() -> types.ModuleType:
    """Return an empty module; not ``__main__``, so a program's own demonstration does not run."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    return module


def _describe(error: BaseException, tests: str) -> bytes:
    """Return a failure as JSON: its type, what it says, and the test it is about."""
    try:
        status = "output" if getattr(error, "errno", None) == errno.EFBIG else "failed"
        words = f"{type(error).__name__}: {error}".removesuffix(": ")
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _TESTS:
                line = trace.tb_lineno
            trace = trace.tb_next
        where = f" at `{tests.splitlines()[line - 1].strip()}`" if line else ""
        claim = {"status": status, "detail": (words[:500] + where)[: CLAIM_BYTES // 4]}
        return json.dumps(claim).encode()
    except MemoryError:
        return _OUT_OF_MEMORY
    except BaseException:
        return b'{"status": "failed", "detail": "an exception that cannot be described"}'
