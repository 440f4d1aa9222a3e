"""`--track`: cells as runs of the real trackers, offline; a tracker that fails stops nothing."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.runner.jobs import run_cells
from ablations.runner.trackers import tracker
from tests.runner.fakes import TASK, FakeEvaluator, evaluations, make_cells

ROOT = Path(__file__).parents[2]
FACTS = {"study": "layer_count", "out": "runs/layer_count", "protocol": "p"}

# In a process of its own: trackers start services, and warn at import.
SCRIPT = """
import functools, sys
from pathlib import Path
from ablations.runner.jobs import run_cells
from ablations.runner.trackers import tracker
from tests.runner.fakes import FakeEvaluator, make_cells
from tests.runner.test_trackers import FACTS

show = functools.partial(tracker(sys.argv[2]), facts=FACTS)
summary = run_cells(
    Path(sys.argv[1]), make_cells(2), FakeEvaluator(), progress=False, shows=[show]
)
print(len(summary.evaluated))
"""


def tracked(name: str, folder: Path) -> Path:
    """Return where a tracker wrote two cells of a run that ended well."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'layerswap[{name}]')")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "out"), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2"], "a tracker printed among the scores"
    assert "did not take" not in done.stderr
    return folder


def values(cell: Any) -> dict[str, float]:
    (score,) = evaluations(cell)[TASK].scores
    name = f"{TASK}/{score.metric}"
    assert score.interval is not None
    return {
        name: score.value,
        f"{name}/low": score.interval.low,
        f"{name}/high": score.interval.high,
    }


@pytest.mark.slow
def test_trackio_has_a_run_a_cell(tmp_path: Path) -> None:
    with sqlite3.connect(tracked("trackio", tmp_path) / "layer_count.db") as database:
        rows = database.execute("select run_name, metrics from metrics order by id").fetchall()
    assert len(rows) == 2
    for (name, text), cell in zip(rows, make_cells(2), strict=True):
        assert name.startswith(f"{cell.label} ")
        assert json.loads(text) == values(cell)


@pytest.mark.slow
def test_wandb_has_a_run_a_cell(tmp_path: Path) -> None:
    runs = list(tracked("wandb", tmp_path).glob("wandb/offline-run-*/*.wandb"))
    contents = [path.read_bytes() for path in runs]
    assert len(contents) == 2
    for cell in make_cells(2):
        (content,) = (each for each in contents if f'"{cell.label}"'.encode() in each)
        for name, value in values(cell).items():
            assert name.encode() in content
            assert repr(value).encode() in content


def tracker_of(monkeypatch: pytest.MonkeyPatch, calls: list[Any], *, fails: bool = False) -> Any:
    def init(**given: Any) -> None:
        if fails:
            raise ConnectionError("no server")
        calls.append(given)

    library = SimpleNamespace(init=init, log=calls.append, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "trackio", library)
    return tracker("trackio")


def test_the_same_cell_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()
    show = tracker_of(monkeypatch, calls)
    one, other = make_cells(2)
    show(one, evaluations(one), FACTS)
    show(one, evaluations(one), FACTS)
    show(other, {}, FACTS)  # every task failed: there is nothing to send
    first, scores, again, _ = calls
    assert first["name"] == again["name"]
    assert first["config"].items() >= {"bottom_layers": "0", "language": "swahili", **FACTS}.items()
    assert scores == values(one)


def test_a_tracker_that_fails_does_not_stop_the_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    show = tracker_of(monkeypatch, [], fails=True)
    shows = [lambda cell, found: show(cell, found, FACTS)]
    with caplog.at_level(logging.WARNING):
        summary = run_cells(tmp_path, make_cells(2), FakeEvaluator(), progress=False, shows=shows)
    assert len(summary.evaluated) == 2
    assert caplog.text.count("trackio did not take its scores: no server") == 2


def test_a_tracker_that_is_not_there_is_said_before_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["run", "layer_count", "--track", "wandb", "--out", str(out)])
    assert done.exit_code == 2
    assert "pip install 'layerswap[wandb]'" in done.output
    assert not out.exists()
