"""The quickstart as a user runs it, on the tiny testbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ROWS = ["base", "task expert", "language expert", "soup", "layer swap"]


def run(where):
    """Run `layerswap quickstart` in `where`, with this checkout's code."""
    code = "from ablations.cli import main; main()"
    options = ["--preset", "tiny", "--limit", "8", "--backend", "hf"]
    return subprocess.run(
        [sys.executable, "-c", code, "quickstart", *options],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_shows_every_model_and_how_to_read_them(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("model  ") :]
    rows = [line for line in table.splitlines() if line.startswith(tuple(ROWS))]
    assert [row.split("  ")[0] for row in rows] == ROWS * 2  # six tasks take two tables
    assert all(row.count("[") == 3 for row in rows)
    assert "does not show: the paper's effect" in table
    assert "layerswap report runs/quickstart" in table


def test_an_occupied_pocket_folder_exits_2(tmp_path):
    (tmp_path / "runs" / "pocket" / "base").mkdir(parents=True)
    (tmp_path / "runs" / "pocket" / "base" / "mine.txt").write_text("kept", encoding="utf-8")
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr
