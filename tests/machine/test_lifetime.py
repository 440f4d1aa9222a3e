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
time.sleep(1)  # an engine takes longer to start; its warden looks five times a second
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
os._exit(0)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_descendants_end_with_the_worker(end: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, text=True, **pipes) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        family = psutil.Process(worker.pid).children(recursive=True)
        assert len(family) >= 3  # the warden among them
        if end == "kill":
            worker.kill()
        else:
            worker.stdin.write("\n")
            worker.stdin.flush()
        wait_until(lambda: worker.poll() is not None)
        wait_for_end(family)
