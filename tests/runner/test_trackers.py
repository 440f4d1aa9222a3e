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
from ablations.runner.trackers import Tracker, metrics
from ablations.runner.work import items_of
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell
from tests.runner.fakes import FakeEvaluator, fake_evaluation, make_cells

ROOT = Path(__file__).parents[2]
FACTS = {"study": "layer_count", "out": "runs/layer_count", "protocol": "p"}

# In a process of its own: trackers start services, and warn at import.
SCRIPT = """
import functools, sys
from pathlib import Path
from ablations.runner.jobs import run_cells
from ablations.runner.trackers import Tracker
from tests.runner.fakes import FakeEvaluator, make_cells

out, name = Path(sys.argv[1]), sys.argv[2]
facts = {"study": "layer_count", "out": "runs/layer_count", "protocol": "p"}
show = functools.partial(Tracker(name).show, facts=facts)
summary = run_cells(
    out, make_cells(2), FakeEvaluator(), progress=False, shows=[show]
)
print(len(summary.evaluated))
"""


def evaluations(cell: Cell) -> dict[str, Evaluation]:
    return {work.task: fake_evaluation(work) for work in items_of(cell)}


def tracked(name: str, tmp_path: Path) -> Path:
    """Return where a tracker kept two cells of a run that ended well."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'layerswap[{name}]')")
    kept = tmp_path / "kept"
    kept.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **{"WANDB_MODE": "offline", "WANDB_DIR": str(kept), "TRACKIO_DIR": str(kept)},
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2"], "a tracker printed among the scores"
    assert "did not take" not in done.stderr
    return kept


@pytest.mark.slow
def test_trackio_has_a_run_a_cell(tmp_path: Path) -> None:
    kept = tracked("trackio", tmp_path)
    with sqlite3.connect(kept / "layer_count.db") as database:
        rows = database.execute("select run_name, metrics from metrics order by id").fetchall()
    found = {name: json.loads(text) for name, text in rows}
    assert len(found) == 2
    for name, cell in zip(found, make_cells(2), strict=True):
        assert name.startswith(f"{cell.label} ")
        assert found[name] == metrics(evaluations(cell))


@pytest.mark.slow
def test_wandb_has_a_run_a_cell(tmp_path: Path) -> None:
    runs = list(tracked("wandb", tmp_path).glob("wandb/offline-run-*/*.wandb"))
    assert len(runs) == 2
    contents = [path.read_bytes() for path in runs]
    for cell in make_cells(2):
        (content,) = (each for each in contents if f'"{cell.label}"'.encode() in each)
        for name, value in metrics(evaluations(cell)).items():
            assert name.encode() in content
            assert repr(value).encode() in content
        assert b"layer_count" in content
        assert b"swahili" in content


class Recorder:
    """Takes what a tracker is told; fails where it is asked to."""

    def __init__(self, *, fails: bool = False):
        self.calls: list[Any] = []
        self._fails = fails

    def init(self, **given: Any) -> None:
        if self._fails:
            raise ConnectionError("no server")
        self.calls.append(given)

    def log(self, scores: Any) -> None:
        self.calls.append(scores)

    def finish(self) -> None:
        self.calls.append("finish")


def tracker_of(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Tracker:
    library = SimpleNamespace(init=recorder.init, log=recorder.log, finish=recorder.finish)
    monkeypatch.setitem(sys.modules, "trackio", library)
    return Tracker("trackio")


def test_the_same_cell_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    tracker = tracker_of(monkeypatch, recorder)
    one, other = make_cells(2)
    tracker.show(one, evaluations(one), FACTS)
    tracker.show(one, evaluations(one), FACTS)
    tracker.show(other, {}, FACTS)  # every task failed: there is nothing to send
    first, scores, _, again, *_ = recorder.calls
    assert len(recorder.calls) == 6
    assert first["name"] == again["name"]
    assert first["config"].items() >= {"bottom_layers": "0", "language": "swahili", **FACTS}.items()
    assert scores == metrics(evaluations(one))


def test_filters_are_named() -> None:
    (evaluation,) = evaluations(make_cells(1)[0]).values()
    (score,) = evaluation.scores
    both = (score, score.model_copy(update={"filter": "loose", "interval": None}))
    found = metrics({"fake_math": evaluation.model_copy(update={"scores": both})})
    name = f"fake_math/{score.metric}"
    assert list(found) == [name, f"{name}/low", f"{name}/high", f"{name},loose"]


def test_a_tracker_that_fails_does_not_stop_the_study(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = tracker_of(monkeypatch, Recorder(fails=True))
    cells = make_cells(2)
    with caplog.at_level(logging.WARNING):
        summary = run_cells(
            tmp_path,
            cells,
            FakeEvaluator(),
            progress=False,
            shows=[lambda cell, found: tracker.show(cell, found, FACTS)],
        )
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
