"""The benchmarks run, at the smallest size of each: nobody sees a figure here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "benchmarks"

SMALLEST = {
    "bench_coverage": "--draws 2 --items 20",
    "bench_hashes": "--gb 0.001 --models 1",
    "bench_hub": "--no-count --width 32",
    "bench_loading": "--size pocket --rounds 1",
    "bench_merge": "--gib 0.01 --repeats 1 --cold-only --ways cp,merge,copies",
    "bench_power": "--draws 2 --items 20",
    "bench_search": "--draws 2",
}


def test_every_benchmark_is_here():
    needs_pocket_and_vllm = {"bench_live"}
    assert {
        file.stem for file in FOLDER.glob("bench_*.py")
    } == SMALLEST.keys() | needs_pocket_and_vllm


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name, tmp_path):
    command = [sys.executable, FOLDER / f"{name}.py", *SMALLEST[name].split()]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
