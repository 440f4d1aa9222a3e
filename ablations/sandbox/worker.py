"""Runs a program and its tests in this process, and proves that they ran to their end.

Its text is given to a fresh ``python -I -S -c`` inside the sandbox, so it imports the standard
library only. Knows limits and pipes; not what a program is for.

What runs here is not trusted, so nothing here is a verdict: that the tests have passed is proven
by a random number that can be read from a pipe and is written back after the last of them. It is
in no variable, file or argument while the program runs, so no way of leaving early, printing
something or replacing something by name passes for it. A program that knows this very file could
read that pipe by itself; nothing that runs tests beside the code they test can rule that out, nor
can it a result that claims to be equal to everything.
"""

import errno
import gc
import json
import os
import resource
import sys
import types
from typing import Any, NoReturn

_OUT_OF_MEMORY = b'{"status": "memory", "detail": "MemoryError"}'


def run(request: dict[str, Any], challenge: int, proof: int) -> NoReturn:
    """Set the limits, run the request's program and tests, prove it, and exit.

    Args:
        request: with ``source``, ``tests``, ``limits`` (name of a limit to its two values),
            and ``root`` and ``user`` (to become, where root runs this) or None.
        challenge: pipe with the random number.
        proof: pipe for one byte when the program starts, then the number or what went wrong.
    """
    # The names are taken before the program can replace what they stand for.
    read, write, leave, trace, profile = os.read, os.write, os._exit, sys.settrace, sys.setprofile
    execute, describe = exec, _describe
    tests = compile(request["tests"], "<tests>", "exec", dont_inherit=True, optimize=0)
    source = request["source"]
    _prepare(request, challenge, proof)
    write(proof, b".")
    try:
        namespace = sys.modules.setdefault("program", types.ModuleType("program")).__dict__
        execute(compile(source, "<program>", "exec", dont_inherit=True, optimize=0), namespace)
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


def _prepare(request: dict[str, Any], challenge: int, proof: int) -> None:
    """Give up all that the program must not have; leave it three standard streams and two pipes."""
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    low, high = sorted((challenge, proof))
    for first, end in ((3, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
        os.closerange(first, end)
    if request["user"] is not None:
        # In a changed root no user namespace can be made, in which a program could mount.
        os.chroot(request["root"])
        os.chdir("/work")
        os.setgroups([])
        os.setresgid(*[request["user"]] * 3)
        os.setresuid(*[request["user"]] * 3)
    for name, values in request["limits"].items():
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        known = [value if most == resource.RLIM_INFINITY else min(value, most) for value in values]
        resource.setrlimit(kind, (known[0], known[1]))
    os.environ.clear()
    sys.argv[:] = ["program"]
    gc.freeze()


def _describe(error: BaseException, tests: str) -> bytes:
    """Return a failure as JSON: its type, what it says, and the test it is about."""
    try:
        status = "output" if getattr(error, "errno", None) == errno.EFBIG else "failed"
        words = f"{type(error).__name__}: {error}".removesuffix(": ")
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<tests>":
                line = trace.tb_lineno
            trace = trace.tb_next
        where = f" at `{tests.splitlines()[line - 1].strip()}`" if line else ""
        return json.dumps({"status": status, "detail": (words[:500] + where)[:500]}).encode()
    except MemoryError:
        return _OUT_OF_MEMORY
    except BaseException:
        return b'{"status": "failed", "detail": "an exception that cannot be described"}'


if __name__ == "__main__":
    run(json.loads(sys.stdin.buffer.read()), int(sys.argv[1]), int(sys.argv[2]))
