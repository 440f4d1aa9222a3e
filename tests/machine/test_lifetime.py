"""What a worker has started ends with it, however it ended."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for_end, wait_until

ROOT = Path(__file__).parents[2]
WORKER = """
import os, subprocess, sys, time
from ablations.machine.lifetime import take_descendants_along
take_descendants_along()
subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"])
if not os.fork():  # as vLLM starts its engine
    time.sleep(600)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
os._exit(0)
"""


def all_below(pid: int) -> list[psutil.Process]:
    """Return the four descendants of the worker once all are there, the warden among them."""
    family = psutil.Process(pid).children(recursive=True)
    return family if len(family) >= 4 else []


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_descendants_end_with_the_worker(end: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, text=True, **pipes) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        family = wait_until(lambda: all_below(worker.pid))
        warden = next(each for each in family if "-S" in each.cmdline())
        looks = warden.num_ctx_switches().voluntary  # it sleeps after each
        wait_until(lambda: warden.num_ctx_switches().voluntary >= looks + 3)
        if end == "kill":
            worker.kill()
        else:
            worker.stdin.write("\n")
            worker.stdin.flush()
        wait_until(lambda: worker.poll() is not None)
        wait_for_end(family)
