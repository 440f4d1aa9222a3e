"""Programs run as MBPP runs them, but for smaller limits."""

from __future__ import annotations

import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from ablations.sandbox.programs import probe, run_program
from ablations.sandbox.watch import ProgramVerdict
from tests.waiting import wait_until

Run = Callable[..., ProgramVerdict]


@pytest.fixture
def run() -> Run:
    """Runs a program under bwrap, with small limits."""
    if (lacking := probe()) is not None:
        pytest.skip(f"no program can be held on this machine: {lacking}")

    def run_held(source: str, tests: str = "", **limits: float) -> ProgramVerdict:
        settings = {"time_s": 5, "memory_bytes": 512 << 20, "output_bytes": 1 << 16} | limits
        return run_program(textwrap.dedent(source), tests=tests, **settings)  # type: ignore[arg-type]

    return run_held


@pytest.fixture
def marked() -> Iterator[str]:
    """The start of a program that names itself; afterwards no process of that name may be left.

    The name stays with what it forks, and is seen from outside.
    """
    name = f"lsw-{secrets.token_hex(4)}"
    yield f"import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
    wait_until(lambda: not processes_marked(name))


def processes_marked(marked: str) -> list[int]:
    """Return the processes of a name, or of the program that names itself."""
    name = marked.split("'")[1] if "'" in marked else marked
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == name]


@contextmanager
def something_else(environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has nothing to do with any program."""
    script = "import time; time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as other:
        try:
            yield other
        finally:
            other.kill()
