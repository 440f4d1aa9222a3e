"""Runners side by side, files that cannot be written, engines that die: real processes."""

import functools
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.runner import records
from ablations.runner.jobs import in_processes, run_cells
from layerswap_method.errors import LayerSwapError
from tests.runner.fakes import (
    FakeEvaluator,
    make_cells,
    scores_on_disk,
)

ROOT = Path(__file__).parent.parent.parent


def start_victim(out: Path, cells: int, delay: float, company: int = 1) -> subprocess.Popen:
    words = map(str, (out, cells, delay, company))
    command = [sys.executable, "-m", "tests.runner.victim", *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def undisturbed(folder: Path, count: int) -> dict[str, tuple[bytes, ...]]:
    cells = make_cells(count, per_group=2)
    run_cells(folder, cells, FakeEvaluator(), progress=False)
    return scores_on_disk(folder)


def test_two_runners_started_at_once_share_the_cells(tmp_path: Path) -> None:
    out = tmp_path / "run"
    victims = [start_victim(out, 40, delay=0.1, company=2) for _ in range(2)]
    for victim in victims:
        _, stderr = victim.communicate(timeout=300)
        assert victim.returncode == 0, stderr.decode()
    lines = [line.split() for line in out.with_suffix(".journal").read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [f"s{index:03d}" for index in range(20)]
    assert len({pid for _, pid in lines}) == 2
    assert scores_on_disk(out) == undisturbed(tmp_path / "undisturbed", 40)


def test_a_worker_that_dies_costs_its_model_only(tmp_path: Path) -> None:
    cells = make_cells(4)
    start = functools.partial(in_processes, jobs=1, gpus=1)
    dying = FakeEvaluator(dying=("bottom_layers=1",))
    summary = run_cells(tmp_path, cells, dying, progress=False, start=start)
    assert list(summary.failed) == ["bottom_layers=1"]
    assert "was killed while it worked on this (often: out" in summary.failed["bottom_layers=1"]
    assert len(summary.evaluated) == 3
    evaluator = FakeEvaluator()
    run_cells(tmp_path, cells, evaluator, progress=False)
    assert evaluator.seen == ["s001"]


def test_a_model_at_which_a_call_was_killed_comes_last_in_the_next(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from ablations.runner.jobs import run_cells\n"
        "from tests.runner.fakes import FakeEvaluator, make_cells\n"
        "evaluator = FakeEvaluator(dying=('bottom_layers=0',))\n"
        f"run_cells(Path({str(tmp_path)!r}), make_cells(3), evaluator, progress=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    evaluator = FakeEvaluator()
    summary = run_cells(tmp_path, make_cells(3), evaluator, progress=False)
    assert evaluator.seen == ["s001", "s002", "s000"]
    assert summary.evaluated == [cell.label for cell in make_cells(3)]


def test_workers_that_cannot_begin_end_the_call(tmp_path: Path) -> None:
    start = functools.partial(in_processes, jobs=1, gpus=1)
    evaluator = functools.partial(sys.exit, 3)
    with pytest.raises(LayerSwapError, match=r"no engine can be started: .* exit code 3"):
        run_cells(tmp_path, make_cells(1), evaluator, progress=False, start=start)


def test_several_processes_do_every_cell_once(tmp_path: Path) -> None:
    out, journal = tmp_path / "run", tmp_path / "journal"
    evaluator = FakeEvaluator(delay_s=0.05, journal=journal, company=2)
    start = functools.partial(in_processes, jobs=2, gpus=1)
    run_cells(out, make_cells(12, per_group=2), evaluator, progress=False, start=start)
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [f"s{index:03d}" for index in range(6)]
    assert len({pid for _, pid in lines}) == 2
    assert scores_on_disk(out) == undisturbed(tmp_path / "undisturbed", 12)


def test_a_file_size_limit_fails_the_cell_only(tmp_path: Path) -> None:
    """As a quota does: writing the records fails with an OSError, and nothing half is left."""
    cells = make_cells(2)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        summary = run_cells(tmp_path, cells, FakeEvaluator(), progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert len(summary.failed) == 2
    assert all("cannot be written" in error for error in summary.failed.values())
    assert not list(tmp_path.glob("records/*"))
    assert not list(tmp_path.glob("records/.*"))
    assert "cannot be written" in records.read_failure(tmp_path, "s000").error
    again = run_cells(tmp_path, cells, FakeEvaluator(), progress=False)
    assert len(again.evaluated) == 2
