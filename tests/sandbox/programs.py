"""Running one generated program in a test."""

import textwrap

import pytest

from ablations import sandbox
from ablations.sandbox import ProgramVerdict, run_program

held = pytest.mark.skipif(
    sandbox.probe() is not None, reason=f"no program can be held here: {sandbox.probe()}"
)
PASSED = ProgramVerdict(status="passed")


def run(source, tests="", *, time_s=5, memory=512 << 20, output=1 << 16, held=True):
    return run_program(textwrap.dedent(source), tests, time_s, memory, output, held=held)
