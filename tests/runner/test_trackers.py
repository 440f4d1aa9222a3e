"""`--track`: cells as runs of the real trackers, offline; a tracker that fails stops nothing."""

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.runner.trackers import tracker
from tests.runner.fakes import TASK, evaluations, make_cells, run

ROOT = Path(__file__).parents[2]
FACTS = {"study": "layer_count", "out": "runs/layer_count", "protocol": "p"}

# In a process of its own: trackers start services, and warn at import.
SCRIPT = """
import functools, sys
from pathlib import Path
from ablations.runner.trackers import tracker
from tests.runner.fakes import make_cells, run
from tests.runner.test_trackers import FACTS

show = functools.partial(tracker(sys.argv[2]), facts=FACTS)
print(len(run(Path(sys.argv[1]), make_cells(2), shows=[show]).evaluated))
"""


def values(cell):
    (score,) = evaluations(cell)[TASK].scores
    name, interval = f"{TASK}/{score.metric}", score.interval
    return {name: score.value, f"{name}/low": interval.low, f"{name}/high": interval.high}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "files", "count"),
    [("trackio", "layer_count.db", 1), ("wandb", "wandb/offline-run-*/*.wandb", 2)],
)
def test_the_real_trackers_have_a_run_a_cell(tmp_path, name, files, count):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'layerswap[{name}]')")
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), name]
    given = {"cwd": ROOT, "env": os.environ | places, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2"], "a tracker printed among the scores"
    assert "did not take" not in done.stderr
    content = [path.read_bytes() for path in tmp_path.glob(files)]
    assert len(content) == count
    for cell in make_cells(2):
        assert cell.label.encode() in b"".join(content)
        for key, value in values(cell).items():
            assert key.encode() in b"".join(content)
            assert repr(value).encode() in b"".join(content)


def test_the_same_cell_is_the_same_run(monkeypatch):
    calls = []
    init = lambda **given: calls.append(given)  # noqa: E731
    library = SimpleNamespace(init=init, log=calls.append, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "trackio", library)
    show = tracker("trackio")
    one, other = make_cells(2)
    show(one, evaluations(one), FACTS)
    show(one, evaluations(one), FACTS)
    show(other, {}, FACTS)  # every task failed: there is nothing to send
    first, scores, again, _ = calls
    assert first["name"] == again["name"]
    assert first["config"].items() >= {"bottom_layers": "0", "language": "swahili", **FACTS}.items()
    assert scores == values(one)


def test_a_tracker_that_fails_does_not_stop_the_study(monkeypatch, tmp_path, caplog):
    def init(**_):
        raise ConnectionError("no server")

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    show = tracker("trackio")
    shows = [lambda cell, found: show(cell, found, FACTS)]
    with caplog.at_level(logging.WARNING):
        summary = run(tmp_path, make_cells(2), shows=shows)
    assert len(summary.evaluated) == 2
    assert caplog.text.count("trackio did not take its scores: no server") == 2


def test_a_tracker_that_is_not_there_is_said_before_anything(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["run", "layer_count", "--track", "wandb", "--out", str(out)])
    assert done.exit_code == 2
    assert "pip install 'layerswap[wandb]'" in done.output
    assert not out.exists()
