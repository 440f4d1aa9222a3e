"""`make test-gpu`: every step names tests that exist, and all end within the budget."""

import dataclasses
import subprocess
import sys
import time

import pytest

from tests.on_gpu import ROOT, STEPS, Step, run_steps

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


@pytest.mark.slow
def test_all_steps_end_within_the_budget_and_stand_in_the_table(tmp_path, capsys):
    """A step has its own limit or the rest of the budget, whichever is less."""
    for name, body in {"quick": "pass", "wrong": "assert 0", "stuck": "time.sleep(99)"}.items():
        (tmp_path / f"test_{name}.py").write_text(f"import time\ndef test_one():\n    {body}\n")
    step = {
        name: Step(f"{name} shown", (str(tmp_path / f"test_{name}.py"),), needs_vllm=False)
        for name in ("quick", "wrong", "stuck")
    }
    steps = {
        "engine": Step("an engine", ()),
        "quick": step["quick"],
        "wrong": step["wrong"],
        "limit": dataclasses.replace(step["stuck"], limit_s=3),
        "rest": step["stuck"],
        "late": step["quick"],
    }
    began = time.monotonic()
    rows, is_wrong = run_steps(steps, ("-c", "/dev/null"), 30, has_vllm=False)
    assert time.monotonic() - began < 45
    assert is_wrong
    outcomes = {name: (outcome, *counts[:2]) for name, _, outcome, *counts in rows}
    assert outcomes.pop("rest")[0].startswith("not ended in ")
    assert outcomes == {
        "engine": ("skipped: vLLM is not installed",),
        "quick": ("passed", 1, 0),
        "wrong": ("FAILED", 1, 1),
        "limit": ("not ended in 3 s", None, None),
        "late": ("not begun: the 30 s are over",),
    }
    assert "assert 0" in capsys.readouterr().out
