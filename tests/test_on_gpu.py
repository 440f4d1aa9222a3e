"""Every step of `make test-gpu` names tests that exist."""

import subprocess
import sys

import pytest

from tests.on_gpu import ROOT, STEPS

COLLECT = """
import pytest
from tests.on_gpu import STEPS
for name, step in STEPS.items():
    print("STEP", name, int(pytest.main(["--collect-only", "-qq", *step.words])), flush=True)
"""


@pytest.mark.slow
def test_every_step_names_tests_that_exist():
    done = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("STEP ")]
    codes = {name: code for _, name, code in lines}
    assert codes == dict.fromkeys(STEPS, "0"), done.stdout[-3000:]
