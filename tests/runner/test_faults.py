"""Runners side by side, files that cannot be written, engines that die: real processes."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ablations.machine.progress import Step, listening
from ablations.runner import records
from ablations.runner.loop import run_cells
from ablations.runner.processes import ProcessExecutor
from tests.runner.fakes import (
    ITEMS,
    TASK,
    FakeEvaluator,
    InProcess,
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
    run_cells(folder, cells, InProcess(FakeEvaluator()), progress=False)
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


def test_an_engine_that_dies_takes_only_its_cell(tmp_path: Path) -> None:
    cells = make_cells(4)
    executor = ProcessExecutor(FakeEvaluator(dying=("bottom_layers=1",)))
    try:
        summary = run_cells(tmp_path, cells, executor, progress=False)
    finally:
        executor.close()
    assert list(summary.failed) == ["bottom_layers=1"]
    assert "the engine's process was ended by SIGKILL" in summary.failed["bottom_layers=1"]
    assert len(summary.evaluated) == 3
    evaluator = FakeEvaluator()
    run_cells(tmp_path, cells, InProcess(evaluator), progress=False)
    assert evaluator.seen == ["s001"]


def test_several_processes_do_every_cell_once(tmp_path: Path) -> None:
    out, journal = tmp_path / "run", tmp_path / "journal"
    executor = ProcessExecutor(FakeEvaluator(delay_s=0.05, journal=journal), jobs=2)
    try:
        run_cells(out, make_cells(12, per_group=2), executor, progress=False)
    finally:
        executor.close()
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [f"s{index:03d}" for index in range(6)]
    assert len({pid for _, pid in lines}) == 2
    assert scores_on_disk(out) == undisturbed(tmp_path / "undisturbed", 12)


@pytest.mark.slow
def test_what_several_processes_are_doing_is_said_together(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(delay_s=2, journal=tmp_path / "journal", company=2)
    executor = ProcessExecutor(evaluator, jobs=2)
    heard: list[Step] = []
    try:
        with listening(heard.append):
            run_cells(tmp_path / "run", make_cells(3), executor, progress=False)
    finally:
        executor.close()
    several = [step for step in heard if step.what == "2 tasks at once"]
    assert {step.total for step in several} == {2 * ITEMS}
    assert any(step.done > 0 for step in several)
    alone = [step for step in heard if step.what == TASK]
    assert alone
    assert all(step.total == ITEMS and step.where for step in alone)


def test_a_file_size_limit_fails_the_cell_only(tmp_path: Path) -> None:
    """As a quota does: writing the records fails with an OSError, and nothing half is left."""
    cells = make_cells(2)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        summary = run_cells(tmp_path, cells, InProcess(FakeEvaluator()), progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert len(summary.failed) == 2
    assert all("cannot be written" in error for error in summary.failed.values())
    assert not list(tmp_path.glob("records/*"))
    assert not list(tmp_path.glob("records/.*"))
    assert records.read_failure(tmp_path, "s000").attempt == 1
    again = run_cells(tmp_path, cells, InProcess(FakeEvaluator()), progress=False)
    assert len(again.evaluated) == 2
