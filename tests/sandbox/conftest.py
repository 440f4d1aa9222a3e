"""Programs run in each way of holding them that this machine has."""

from __future__ import annotations

import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from ablations.sandbox import programs as sandbox
from ablations.sandbox.programs import Isolation, ProgramResult, run_program

Run = Callable[..., ProgramResult]

NAMESPACES = Isolation(name="namespaces", restricts_files=True)
SECCOMP = Isolation(name="seccomp", restricts_files=True)
NAME_THIS = "import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
"""Gives a process a name that those it forks keep, and that is seen from outside."""


@pytest.fixture(params=[NAMESPACES, SECCOMP], ids=lambda isolation: isolation.name, scope="module")
def isolation(request: pytest.FixtureRequest) -> Isolation:
    if (lacking := sandbox.probe(request.param)) is not None:
        pytest.skip(f"this machine has no such isolation: {lacking}")
    return request.param


@pytest.fixture
def run(isolation: Isolation) -> Run:
    """Runs a program in each kind of isolation that this machine has."""
    return partial(run_in, isolation)


@pytest.fixture
def run_once() -> Run:
    """Runs a program in the best isolation, for what does not depend on it."""
    return partial(run_in, None)


def run_in(
    isolation: Isolation | None, source: str, tests: str = "", **limits: float
) -> ProgramResult:
    settings = {"time_s": 5, "memory_bytes": 512 << 20, "output_bytes": 1 << 16} | limits
    return run_program(textwrap.dedent(source), tests=tests, isolation=isolation, **settings)


@pytest.fixture
def marked() -> Iterator[str]:
    """The start of a program that names itself; afterwards no process of that name may be left."""
    name = f"lsw-{secrets.token_hex(4)}"
    yield NAME_THIS.format(name=name)
    assert processes_named(name) == []


def name_of(marked: str) -> str:
    return marked.split("'")[1]


def processes_named(name: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "comm").read_text().strip() == name:
                found.append(int(process.name))
        except OSError:
            continue
    return found


@contextmanager
def something_else(environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has nothing to do with any program."""
    script = "import time; time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as other:
        try:
            yield other
        finally:
            other.kill()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}
