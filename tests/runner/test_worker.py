"""Workers with an engine that lives here: no model, real files, and real processes that die."""

import functools
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ablations.machine.locks import try_claim
from ablations.machine.progress import listening
from ablations.runner.jobs import in_processes, share_of, show_scores
from ablations.runner.work import ModelFailed, Work
from ablations.runner.worker import LOCKS
from ablations.runs import records
from ablations.scoring.evaluation import TaskFailed
from layerswap_method.errors import LayerSwapError
from tests.kills import kill_when, start
from tests.runner.fakes import (
    RAISES,
    TASK,
    FakeEngine,
    evaluations,
    fake_evaluation,
    journal_of,
    key_of,
    make_cells,
    run,
    scores_on_disk,
)

ROOT = Path(__file__).parents[2]
ONE = functools.partial(in_processes, jobs=1, gpus=1)


def undisturbed(folder, count, per_group=1):
    run(folder, make_cells(count, per_group=per_group))
    return scores_on_disk(folder)


def test_every_task_gets_a_whole_record(tmp_path):
    cells = make_cells(3)
    summary = run(tmp_path, cells)
    assert summary.evaluated == [cell.label for cell in cells]
    for index, cell in enumerate(cells):
        record = records.read_record(tmp_path, key_of(index))
        evaluation = fake_evaluation(Work(cell, TASK))
        assert record.evaluation == evaluation.model_copy(update={"samples": ()})
        texts = {"prompts": (), "responses": ()}  # they are with the stored answers
        items = tuple(each.model_copy(update=texts) for each in evaluation.samples)
        assert tuple(record.samples()) == items
        assert record.timing_s["total"] >= 0


def test_what_is_new_is_asked_alone(tmp_path):
    """A task, a language or a model that is added to a study; a cell that has another name."""

    def seen(*given, **changes):
        engine = FakeEngine()
        summary = run(tmp_path, make_cells(*given, **changes), engine)
        return engine.seen, len(summary.evaluated), len(summary.before)

    # Cells of equal weights are evaluated once.
    assert seen(4, per_group=2) == (["s000", "s001"], 4, 0)
    before = scores_on_disk(tmp_path)
    assert seen(2, tasks=(TASK, "more")) == (["s000-more", "s001-more"], 2, 0)
    assert seen(3) == (["s002"], 1, 2)
    renamed = [cell.model_copy(update={"label": f"new {cell.label}"}) for cell in make_cells(3)]
    assert len(run(tmp_path, renamed, FakeEngine(raising={"s000": RAISES})).before) == 3
    after = scores_on_disk(tmp_path)
    assert before == {key: after[key] for key in before}


def test_the_place_in_the_run_is_shown(tmp_path):
    def places(*given, **changes):
        steps = []
        with listening(steps.append):
            run(tmp_path, make_cells(*given, **changes))
        whole = [step for step in steps if step.scope == "command"]
        assert (whole[-1].done, whole[-1].unit) == (whole[-1].total, "tasks")
        return list(dict.fromkeys(step.activity for step in whole))

    assert places(1) == ["0 of 1 model", "task 1 of 1", ""]
    assert places(3, tasks=(TASK, "more")) == [
        "0 of 3 models",
        "model 1 of 3, task 2 of 2",
        "model 1 of 3",
        "model 2 of 3, task 1 of 2",
        "model 2 of 3, task 2 of 2",
        "model 2 of 3",
        "model 3 of 3, task 1 of 2",
        "model 3 of 3, task 2 of 2",
        "model 3 of 3",
    ]


def test_output_that_nobody_reads_ends_the_call_and_leaves_its_records(tmp_path):
    def show(*_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(tmp_path, make_cells(2), show=show)
    assert records.find_record(tmp_path, key_of(0)) is not None
    assert not list(tmp_path.glob("failures/*"))


@pytest.mark.parametrize(
    ("raising", "seen", "failed", "details"),
    [
        # A task that fails leaves the others of its model, and other models.
        (
            {"s000-more": RAISES},
            ["s000-more", "s000", "s001-more", "s001"],
            {"bottom_layers=0": "more: the task has raised"},
            "",
        ),
        # It is named once.
        (
            {"s000-more": TaskFailed("more", "its data is damaged")},
            ["s000-more", "s000", "s001-more", "s001"],
            {"bottom_layers=0": "more: its data is damaged"},
            "",
        ),
        # A model that fails is not tried for every task.
        (
            {"s000-more": ModelFailed("its merge failed")},
            ["s000-more", "s001-more", "s001"],
            {"bottom_layers=0": "more, fake_math: its merge failed"},
            "",
        ),
        # A bug keeps its traceback.
        (
            {"s001": KeyError("no such key")},
            ["s000-more", "s000", "s001-more", "s001"],
            {"bottom_layers=1": "fake_math: KeyError: 'no such key'"},
            "Traceback",
        ),
    ],
)
def test_a_failure_says_why_and_a_rerun_does_exactly_the_rest(
    tmp_path, raising, seen, failed, details, caplog
):
    cells = make_cells(2, tasks=("more", TASK))
    engine = FakeEngine(raising=raising)
    summary = run(tmp_path / "run", cells, engine)
    assert engine.seen == seen
    assert summary.failed == failed
    assert "more failed: more" not in caplog.text
    (key,) = raising
    assert details in records.read_failure(tmp_path / "run", key).details
    lost = {f"s{cell}{task}" for cell in ("000", "001") for task in ("-more", "")}
    lost -= set(scores_on_disk(tmp_path / "run"))
    engine = FakeEngine()
    assert not run(tmp_path / "run", cells, engine).failed
    assert set(engine.seen) == lost
    assert records.read_failure(tmp_path / "run", key) is None
    run(tmp_path / "undisturbed", cells)
    assert scores_on_disk(tmp_path / "run") == scores_on_disk(tmp_path / "undisturbed")


def test_without_a_claim_what_is_finished_stays(tmp_path):
    run(tmp_path, make_cells(1))
    shutil.rmtree(tmp_path / ".locks")
    (tmp_path / ".locks").touch()
    (failed,) = run(tmp_path, make_cells(1, tasks=("more", TASK))).failed.values()
    assert failed.startswith("more: it cannot be claimed: ")
    assert records.read_record(tmp_path, key_of(0)) is not None


def test_a_damaged_record_is_made_anew(tmp_path):
    whole = undisturbed(tmp_path, 2)
    (tmp_path / "records" / "s001.jsonl").write_text("{")
    (tmp_path / "records" / ".s001.jsonl.0a1b2c3d").write_text("{")  # of a killed writer
    engine = FakeEngine()
    run(tmp_path, make_cells(2), engine)
    assert engine.seen == ["s001"]
    assert scores_on_disk(tmp_path) == whole
    assert len(list((tmp_path / "records").iterdir())) == 2


def test_a_file_size_limit_fails_the_cell_only(tmp_path):
    """As a quota does: writing the records fails with an OSError, and nothing half is left."""
    cells = make_cells(2)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        summary = run(tmp_path, cells)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert len(summary.failed) == 2
    assert all("cannot be written" in error for error in summary.failed.values())
    assert not [*tmp_path.glob("records/*"), *tmp_path.glob("records/.*")]
    assert len(run(tmp_path, cells).evaluated) == 2


_ON_A_FULL_DISK = """
import sys
from functools import partial
from pathlib import Path
from ablations.runner.jobs import in_processes
from tests.runner.fakes import FakeEngine, make_cells, run
from layerswap_method.errors import LayerSwapError
disk, jobs = Path(sys.argv[1]), int(sys.argv[2])
journal = disk.parent / "journal"
options = {} if jobs == 1 else {"start": partial(in_processes, jobs=jobs, gpus=1)}
(disk / "filler").write_bytes(b"0" * int(sys.argv[3]))
try:
    run(disk / "run", make_cells(20), FakeEngine(journal=journal), **options)
except LayerSwapError as error:
    print(type(error).__name__, error.message)
print("asked", len(journal.read_text().splitlines()))
print("stored", len([*(disk / "run").glob("records/s*")]))
(disk / "filler").unlink()
print("left", len(run(disk / "run", make_cells(20)).failed))
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_ends_the_run_at_once(tmp_path, jobs):
    """On a disk of 200 kB, in a mount namespace: a real ENOSPC, also of a worker process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=200k none {disk} && exec "$@"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    command = [*inside, sys.executable, "-c", _ON_A_FULL_DISK, str(disk), str(jobs), "120000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    error, *counts = done.stdout.splitlines()[-4:]
    asked, stored, left = (int(line.split()[1]) for line in counts)
    assert error.startswith("DiskFull ")
    assert "make room and run the same command again" in error
    assert 0 < stored < 20
    assert asked <= stored + jobs  # no other cell was computed to be lost
    assert left == 0


def test_a_cell_that_another_runner_holds_is_waited_for(tmp_path):
    claim = try_claim(tmp_path / LOCKS, "w000")
    timer = threading.Timer(0.5, claim.release)
    timer.start()
    engine = FakeEngine()
    run(tmp_path, make_cells(2), engine)
    timer.join()
    assert engine.seen == ["s001", "s000"]  # the free one first


def start_victim(out, cells, delay, company=1, jobs=1):
    command = [sys.executable, "-m", "tests.runner.victim", out, cells, delay, company, jobs]
    return start(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.parametrize("runners", [1, 2])
def test_workers_of_one_call_or_of_two_share_the_cells(tmp_path, runners):
    out = tmp_path / "run"
    victims = [start_victim(out, 20, 0.1, company=2, jobs=3 - runners) for _ in range(runners)]
    for victim in victims:
        _, stderr = victim.communicate(timeout=300)
        assert victim.returncode == 0, stderr.decode()
    begun = journal_of(out.with_suffix(".journal"))
    assert sorted(key for key, _ in begun) == [key_of(index) for index in range(10)]
    assert len({process for _, process in begun}) == 2
    assert scores_on_disk(out) == undisturbed(tmp_path / "undisturbed", 20, per_group=2)


def test_workers_end_with_a_runner_that_is_killed(tmp_path):
    victim = start_victim(tmp_path / "run", 20, 0.5, company=2, jobs=2)
    journal = tmp_path / "run.journal"
    code = kill_when(victim, lambda: journal.exists() and len(journal_of(journal)) >= 2)
    assert code == -signal.SIGKILL, "it ended before it could be killed"


def test_a_worker_that_dies_costs_its_model_only(tmp_path):
    cells = make_cells(4)
    dying = FakeEngine(dying=("bottom_layers=1",))
    summary = run(tmp_path, cells, dying, start=ONE)
    assert list(summary.failed) == ["bottom_layers=1"]
    assert "was killed while it worked on this (often: out" in summary.failed["bottom_layers=1"]
    assert len(summary.evaluated) == 3
    engine = FakeEngine()
    run(tmp_path, cells, engine)
    assert engine.seen == ["s001"]


def test_a_model_at_which_a_call_was_killed_comes_last_in_the_next(tmp_path):
    code = (
        "from pathlib import Path; from tests.runner.fakes import FakeEngine, make_cells, run\n"
        f"run(Path({str(tmp_path)!r}), make_cells(3), FakeEngine(dying=('bottom_layers=0',)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    engine = FakeEngine()
    summary = run(tmp_path, make_cells(3), engine)
    assert engine.seen == ["s001", "s002", "s000"]
    assert summary.evaluated == [cell.label for cell in make_cells(3)]


def test_workers_that_cannot_begin_end_the_call(tmp_path):
    with pytest.raises(LayerSwapError, match=r"no engine can be started: .* exit code 3"):
        run(tmp_path, make_cells(1), functools.partial(sys.exit, 3), start=ONE)


@pytest.mark.parametrize(
    ("names", "gpus", "shares"),
    [
        ("0123", 1, ["0", "1", "2", "3", "0"]),
        ("01234567", 4, ["0123", "4567", "0123"]),
        ("012", 2, ["01", "01"]),
        ("01", 4, ["01", "01"]),
    ],
)
def test_every_worker_gets_as_many_gpus_as_a_model_takes(names, gpus, shares):
    assert [share_of(names, place, gpus) for place in range(len(shares))] == shares


def test_the_bar_shows_tasks(tmp_path, capsys):
    cells = make_cells(8)
    run(tmp_path, cells[:4])
    engine = FakeEngine(delay_s=0.15)
    run(tmp_path, cells, engine, progress=True)
    assert {"4", "6", "8"} <= set(re.findall(r"(\d)/8 tasks", capsys.readouterr().err))


def test_scores_are_printed_when_a_cell_has_ended(tmp_path, capsys):
    tasks = ("pocket_math_sw", "pocket_translate_en_sw")
    (cell,) = make_cells(1, tasks=tasks)
    found = evaluations(cell)
    show_scores(cell, {tasks[0]: found[tasks[0]]})
    text = capsys.readouterr().out
    assert f"math, Swahili: {100 * found[tasks[0]].scores[0].value:.1f} [" in text
    assert text.endswith("translate, English to Swahili: failed\n")
    cells = make_cells(4, per_group=2)
    for printed in ([cell.label for cell in cells], []):  # what was finished is not repeated
        run(tmp_path, cells, show=show_scores)
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == printed
