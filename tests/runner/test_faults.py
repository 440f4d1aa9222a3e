"""Kills, full disks and dying engines: real processes, real signals, a real file system."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ablations.runner import records
from ablations.runner.loop import run_cells
from ablations.runner.processes import ProcessExecutor
from tests.runner.fakes import FakeEvaluator, InProcess, make_cells, scores_on_disk
from tests.waiting import wait_for_end, wait_until

ROOT = Path(__file__).parent.parent.parent
KILLS = 30


def start_victim(out: Path, cells: int, delay: float, company: int = 1) -> subprocess.Popen:
    words = map(str, (out, cells, delay, company))
    command = [sys.executable, "-m", "tests.runner.victim", *words]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def workers_of(victim: subprocess.Popen) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(victim.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found += [process] * ("spawn_main" in " ".join(process.cmdline()))
    return found


def finished_cells(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("records/[!.]*"))


def wait_for_cells(out: Path, count: int, victim: subprocess.Popen) -> None:
    wait_until(lambda: len(finished_cells(out)) >= count, running=victim, every_s=0.005)


def undisturbed(folder: Path, count: int) -> dict[str, tuple[bytes, ...]]:
    cells = make_cells(count, per_group=2)
    run_cells(folder, cells, InProcess(FakeEvaluator()), progress=False)
    return scores_on_disk(folder)


@pytest.mark.slow
def test_a_study_survives_thirty_kills(tmp_path: Path) -> None:
    """Runner or worker is killed at seeded random moments of its work, KILLS times."""
    rng = random.Random(20260101)
    out = tmp_path / "run"
    count, progress = 300, []
    seen: list[psutil.Process] = []
    whole: dict[str, int] = {}
    for _ in range(KILLS):
        victim = start_victim(out, count, delay=0.02)
        wait_for_cells(out, len(whole) + rng.randrange(4), victim)
        time.sleep(rng.uniform(0, 0.05))
        workers = workers_of(victim)
        seen += workers
        if workers and rng.random() < 0.3:  # the engine first, its runner a moment later
            os.kill(rng.choice(workers).pid, signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.1))
        assert victim.poll() is None, "the study ended before it was killed often enough"
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate()
        finished = finished_cells(out)
        progress.append(len(finished) - len(whole))
        for key in finished:  # whole from the first moment, and never written again
            assert records.read_record(out, key) is not None
            stamp = (out / "records" / key).stat().st_mtime_ns
            assert whole.setdefault(key, stamp) == stamp
    assert sum(step > 0 for step in progress) > KILLS // 3
    assert len(whole) < count
    last = start_victim(out, count, delay=0.0)
    _, stderr = last.communicate(timeout=300)
    assert last.returncode == 0, stderr.decode()
    assert scores_on_disk(out) == undisturbed(tmp_path / "undisturbed", count)
    assert not list(out.glob("failures/*"))
    assert not list(out.glob("records/.*"))
    assert len(seen) > KILLS // 3
    wait_for_end(seen)  # workers end with their runner


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


def test_a_full_disk_fails_cells_and_a_rerun_finishes_them(tmp_path: Path) -> None:
    """A file system of 64 KiB: the first cells fit, the others say that it is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small file system: {mounted.stderr.strip()}")
    try:
        cells, out = make_cells(12), disk / "run"
        summary = run_cells(out, cells, InProcess(FakeEvaluator()), progress=False)
        assert summary.evaluated
        assert summary.failed
        assert all("No space left" in error for error in summary.failed.values())
        assert not list(out.glob("records/.*"))  # no half-written record is left
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        evaluator = FakeEvaluator()
        again = run_cells(out, cells, InProcess(evaluator), progress=False)
        assert again.evaluated == list(summary.failed)
        assert len(scores_on_disk(out)) == 12
        assert not list(out.glob("failures/*"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_size_limit_fails_the_cell_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
