"""The quickstart as a user runs it, on the tiny testbed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.runner.records import load_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ROWS = ["base", "task expert", "language expert", "soup", "layer swap"]


def _run(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `layerswap quickstart` in `where`, with this checkout's code."""
    return subprocess.run(
        [
            *(sys.executable, "-c", "from ablations.cli import main; main()", "quickstart"),
            *("--preset", "tiny", "--limit", "8", "--backend", "hf", *arguments),
        ],
        cwd=where,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clone")


@pytest.fixture(scope="module")
def first(where: Path) -> str:
    done = _run(where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_shows_every_model_and_how_to_read_them(first: str) -> None:
    table = first[first.index("exact_match, n=8") :]
    rows = [line for line in table.splitlines() if line.startswith(tuple(ROWS))]
    assert [row.split("  ")[0] for row in rows] == ROWS
    assert all(row.count("[") == 6 for row in rows)
    assert "does not show: the paper's effect" in table
    assert "layerswap report runs/quickstart" in table


def test_nothing_finished_is_done_again(first: str, where: Path) -> None:
    again = _run(where).stdout
    assert "0 cells evaluated, 5 finished before" in again
    assert again[again.index("exact_match, n=8") :] == first[first.index("exact_match, n=8") :]


def test_what_is_lost_is_done_again_and_no_more(first: str, where: Path) -> None:
    out = where / "runs" / "quickstart"
    base = next(cell for cell in load_run(out).cells if cell.label == "base")
    next(task for task in base.tasks if task.task == "pocket_facts_sw").path.unlink()
    again = _run(where).stdout
    assert re.findall(r"(\w+): (\w+) evaluated in", again) == [("base", "pocket_facts_sw")]


def test_an_occupied_pocket_folder_exits_2(tmp_path: Path) -> None:
    (tmp_path / "runs" / "pocket" / "base").mkdir(parents=True)
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
