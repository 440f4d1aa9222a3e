"""The quickstart as a user runs it, on the tiny testbed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.machine.mergekit_program import merge
from ablations.runner.records import load_run
from layerswap_method.errors import InputError, LayerSwapError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ROWS = ["base", "task expert", "language expert", "soup", "layer swap"]


def _run(where, *arguments):
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
def where(tmp_path_factory):
    return tmp_path_factory.mktemp("clone")


@pytest.fixture(scope="module")
def first(where):
    done = _run(where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_shows_every_model_and_how_to_read_them(first):
    table = first[first.index("exact_match, n=8") :]
    rows = [line for line in table.splitlines() if line.startswith(tuple(ROWS))]
    assert [row.split("  ")[0] for row in rows] == ROWS
    assert all(row.count("[") == 6 for row in rows)
    assert "does not show: the paper's effect" in table
    assert "layerswap report runs/quickstart" in table


def test_nothing_finished_is_done_again(first, where):
    again = _run(where).stdout
    assert "0 cells evaluated, 5 finished before" in again
    assert again[again.index("exact_match, n=8") :] == first[first.index("exact_match, n=8") :]


def test_what_is_lost_is_done_again_and_no_more(first, where):
    out = where / "runs" / "quickstart"
    base = next(cell for cell in load_run(out).cells if cell.label == "base")
    next(task for task in base.tasks if task.task == "pocket_facts_sw").path.unlink()
    again = _run(where).stdout
    assert re.findall(r"(\w+): (\w+) evaluated in", again) == [("base", "pocket_facts_sw")]


def test_a_refused_recipe_leaves_no_folder_and_says_why(first, where):
    recipe = where / "wrong.yml"
    text = (ROOT / "recipes" / "pocket" / "layer_swap.yml").read_text()
    absolute = text.replace("runs/pocket", str(where / "runs" / "pocket"))
    recipe.write_text(absolute.replace("bottom_layers: 1", "bottom_layers: 9"))
    with pytest.raises(InputError) as caught:
        merge(recipe, where / "wrong", fingerprint="f")
    assert "failed with exit code 2" in caught.value.message
    assert "more than the model's 4 layers" in caught.value.message
    recipe.write_text(absolute.replace("merge_method: layer_swap", "merge_method: no_such_method"))
    with pytest.raises(LayerSwapError, match="no_such_method"):
        merge(recipe, where / "wrong", fingerprint="f")
    assert not (where / "wrong").exists()
    assert "no_such_method" in (where / "wrong.log").read_text()


def test_an_occupied_pocket_folder_exits_2(tmp_path):
    (tmp_path / "runs" / "pocket" / "base").mkdir(parents=True)
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
