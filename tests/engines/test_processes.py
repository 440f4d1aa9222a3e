"""vLLM in processes of its own, as on a GPU: tensors are named to it, and it may die."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.engines import vllm_engine

ROOT = Path(__file__).parents[2]


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_workers_in_other_processes_and_an_engine_that_dies(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.in_processes", str(tmp_path)],
        env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("@@")]
    assert len(lines) == 1, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(lines[0][2:])
    failure = found.pop("failure")
    assert found == {"engines": 1, "same": True, "again": True, "distinct": 2}
    assert "did not get into the engine: EngineDeadError" in failure
