"""The quickstart as a user runs it, on the tiny testbed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.machine.mergekit_program import merge, mergekit_yaml
from layerswap_method.errors import InputError, LayerSwapError

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


def test_it_says_what_it_does_and_shows_every_model(first: str) -> None:
    for said in ("on HF transformers", "[1/3]", "[2/3]", "[3/3]", "done in"):
        assert said in first
    table = first[first.index("Percent with 95 % intervals") :]
    rows = [line for line in table.splitlines() if line.startswith(tuple(ROWS))]
    assert [row.split("  ")[0] for row in rows] == ROWS
    assert all(row.count("[") == 6 for row in rows)
    # Four layers, b = u = 1: the picture that layerswap_method.algorithm.plan draws.
    assert "█··█" in table
    assert "does not show: the paper's effect" in table
    assert "mergekit-yaml recipes/swahili.yml" in table


def test_the_table_is_what_the_records_say(first: str, where: Path) -> None:
    out = where / "runs" / "quickstart"
    results = json.loads((out / "results.json").read_text())
    models = {next(iter(model["experts"].values())): model for model in results["models"].values()}
    assert set(models) == set(ROWS)
    compared = 0
    for model in models.values():
        for task in model["tasks"].values():
            lines = (out / task["record"] / "samples.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            for score in task["scores"]:
                values = [
                    r["values"][score["metric"]] for r in records if r["filter"] == score["filter"]
                ]
                assert len(values) == score["n"] == 8
                if score["metric"] != "bleu":
                    assert sum(values) / 8 == pytest.approx(score["value"])
                    compared += 1
    assert compared > 20


def test_the_merges_are_what_mergekit_yaml_gives(first: str, where: Path, tmp_path: Path) -> None:
    for name in ("layer_swap", "soup"):
        recipe = ROOT / "recipes" / "pocket" / f"{name}.yml"
        done = subprocess.run(
            [*mergekit_yaml(), str(recipe), str(tmp_path / name)],
            cwd=where,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ours = where / "runs" / "quickstart" / "merged" / name
        weights = sorted(path.name for path in ours.glob("*.safetensors"))
        assert weights
        for file in weights:
            assert (ours / file).read_bytes() == (tmp_path / name / file).read_bytes()


def test_nothing_finished_is_done_again(first: str, where: Path) -> None:
    out = where / "runs" / "quickstart"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    again = _run(where).stdout
    assert again.count("merged before from the same inputs") == 2
    assert again.count("evaluated before, nothing has changed") == 5
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == before
    assert again[again.index("Percent") :] == first[first.index("Percent") :]


def test_a_changed_protocol_and_lost_results_are_done_again(first: str, where: Path) -> None:
    out = where / "runs" / "quickstart"
    shutil.rmtree(out / "merged" / "soup")
    results = json.loads((out / "results.json").read_text())
    shutil.rmtree(out / results["models"]["base"]["tasks"]["pocket_facts_sw"]["record"])
    again = _run(where).stdout
    assert "soup: mergekit-yaml " in again
    # The same bytes were merged, so the soup need not be evaluated; the base must be, in one task.
    assert again.count("evaluated before, nothing has changed") == 4
    assert re.findall(r"base: (\w+) evaluated in", again) == ["pocket_facts_sw"]
    other = _run(where, "--limit", "6").stdout
    assert "evaluated before" not in other
    assert "n=6" in other


def test_another_pocket_folder_gets_an_adjusted_recipe(
    first: str, where: Path, tmp_path: Path
) -> None:
    # One slash would be a hub id for mergekit.
    shutil.copytree(where / "runs" / "pocket", tmp_path / "mine" / "pocket")
    done = _run(tmp_path, "--pocket", "mine/pocket", "--out", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "layer swap: the recipe names runs/pocket; out/recipes/layer_swap.yml" in done.stdout
    ours, theirs = (
        folder / "merged" / "layer_swap" / "model.safetensors"
        for folder in (tmp_path / "out", where / "runs" / "quickstart")
    )
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_refused_recipe_leaves_no_folder_and_says_why(first: str, where: Path) -> None:
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


def test_an_occupied_pocket_folder_exits_2(tmp_path: Path) -> None:
    (tmp_path / "pocket" / "base").mkdir(parents=True)
    done = _run(tmp_path, "--pocket", "pocket")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
