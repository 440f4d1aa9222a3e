"""The loop over cells with an evaluator that lives here: no model, real files."""

import dataclasses
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ablations.machine.locks import holder, try_claim
from ablations.runner import records
from ablations.runner.loop import LOCKS, run_cells
from ablations.runner.work import InProcessExecutor, Work
from layerswap_method.errors import InputError
from tests.runner.fakes import FakeEvaluator, fake_evaluation, make_cells, scores_on_disk


def run(out: Path, cells, evaluator: FakeEvaluator):
    return run_cells(out, cells, InProcessExecutor(evaluator), progress=False)


def test_every_cell_gets_a_whole_record(tmp_path: Path) -> None:
    cells = make_cells(3)
    summary = run(tmp_path, cells, FakeEvaluator())
    assert summary.evaluated == [cell.label for cell in cells]
    for cell in cells:
        record = records.read_cell(tmp_path, cell.key)
        assert record is not None
        evaluation = fake_evaluation(record_work(cell))
        assert record.scores == evaluation.scores
        assert tuple(record.samples()) == evaluation.samples
        assert record.merge == dict(cell.merge)
        assert record.layer_plan == cell.plan
        assert record.values == cell.values
        assert record.timing_s["total"] >= 0
        assert record.provenance["versions"] == {"fake": "1"}


def record_work(cell):
    return Work(cell.score_key, cell.label, cell.merge, cell.request)


def test_cells_of_equal_weights_are_evaluated_once(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    run(tmp_path, make_cells(6, per_group=3), evaluator)
    assert evaluator.seen == ["s000", "s001"]
    found = scores_on_disk(tmp_path)
    assert len(found) == 6
    assert found["k000"] == found["k002"] != found["k003"]
    copied = records.read_cell(tmp_path, "k002")
    assert copied.provenance["evaluated_as"] == "bottom_layers=0"
    assert copied.values == {"bottom_layers": 2}


def test_finished_cells_are_not_done_again(tmp_path: Path) -> None:
    cells = make_cells(4)
    run(tmp_path, cells[:2], FakeEvaluator())
    before = {cell.key: (tmp_path / "cells" / cell.key).stat().st_mtime_ns for cell in cells[:2]}
    evaluator = FakeEvaluator()
    summary = run(tmp_path, cells, evaluator)
    assert evaluator.seen == ["s002", "s003"]
    assert summary.before == ["bottom_layers=0", "bottom_layers=1"]
    after = {cell.key: (tmp_path / "cells" / cell.key).stat().st_mtime_ns for cell in cells[:2]}
    assert after == before


def test_a_failed_cell_says_why_and_a_rerun_does_exactly_that_one(tmp_path: Path) -> None:
    cells = make_cells(4)
    summary = run(tmp_path, cells, FakeEvaluator(raising=("bottom_layers=1",)))
    assert summary.failed == {"bottom_layers=1": "bottom_layers=1: the task has raised"}
    assert len(summary.evaluated) == 3
    failure = records.read_failure(tmp_path, "k001")
    assert failure.attempt == 1
    assert "raised" in failure.error
    run(tmp_path, cells, FakeEvaluator(raising=("bottom_layers=1",)))
    assert records.read_failure(tmp_path, "k001").attempt == 2
    evaluator = FakeEvaluator()
    run(tmp_path, cells, evaluator)
    assert evaluator.seen == ["s001"]
    assert records.read_failure(tmp_path, "k001") is None
    undisturbed = tmp_path / "undisturbed"
    run(undisturbed, cells, FakeEvaluator())
    assert scores_on_disk(tmp_path) == scores_on_disk(undisturbed)


def test_a_bug_in_the_evaluator_keeps_its_traceback(tmp_path: Path) -> None:
    class Broken(FakeEvaluator):
        def evaluate(self, work):
            return {}["no such key"]

    run(tmp_path, make_cells(1), Broken())
    failure = records.read_failure(tmp_path, "k000")
    assert failure.error == "KeyError: 'no such key'"
    assert "Traceback" in failure.details


def test_another_protocol_does_not_resume_onto_old_scores(tmp_path: Path) -> None:
    cells = make_cells(2)
    run(tmp_path, cells, FakeEvaluator())
    changed = [dataclasses.replace(c, score_key=f"x{c.score_key}", key=f"x{c.key}") for c in cells]
    evaluator = FakeEvaluator()
    run(tmp_path, changed, evaluator)
    assert evaluator.seen == ["xs000", "xs001"]


def test_a_cell_under_a_new_name_takes_the_scores_that_are_there(tmp_path: Path) -> None:
    cells = make_cells(2)
    run(tmp_path, cells, FakeEvaluator())
    renamed = [dataclasses.replace(c, key=f"n{c.key}", label=f"new {c.label}") for c in cells]
    evaluator = FakeEvaluator()
    summary = run(tmp_path, renamed, evaluator)
    assert evaluator.seen == []
    assert summary.reused == ["new bottom_layers=0", "new bottom_layers=1"]
    found = scores_on_disk(tmp_path)
    assert found["nk001"] == found["k001"]
    assert records.read_cell(tmp_path, "nk001").label == "new bottom_layers=1"


@pytest.mark.parametrize("name", ["cell.json", "scores.json"])
def test_a_damaged_record_is_made_anew(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cells = make_cells(2)
    run(tmp_path, cells, FakeEvaluator())
    whole = scores_on_disk(tmp_path)
    (tmp_path / "cells" / "k001" / name).write_text("{")
    evaluator = FakeEvaluator()
    with caplog.at_level(logging.WARNING):
        run(tmp_path, cells, evaluator)
    assert evaluator.seen == ["s001"]
    assert "damaged" in caplog.text
    assert scores_on_disk(tmp_path) == whole


@pytest.mark.parametrize(("version", "age"), [(0, "older"), (2, "newer")])
def test_another_schema_version_is_refused(tmp_path: Path, version: int, age: str) -> None:
    cells = make_cells(1)
    run(tmp_path, cells, FakeEvaluator())
    file = tmp_path / "cells" / "k000" / "cell.json"
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "schema_version": version}))
    with pytest.raises(InputError, match=rf"cell\.json: schema version {version}, {age}"):
        run(tmp_path, cells, FakeEvaluator())


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "cells" / ".k000.abc.partial" / "k000"
    left.mkdir(parents=True)
    (left / "scores.json").write_text("[")
    run(tmp_path, make_cells(1), FakeEvaluator())
    assert sorted(path.name for path in (tmp_path / "cells").iterdir()) == ["k000"]


def test_two_runners_share_a_folder_and_do_nothing_twice(tmp_path: Path) -> None:
    cells = make_cells(12)
    evaluators = [FakeEvaluator(delay_s=0.02), FakeEvaluator(delay_s=0.02)]
    summaries = []
    threads = [
        threading.Thread(target=lambda e=e: summaries.append(run(tmp_path, cells, e)))
        for e in evaluators
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(evaluators[0].seen + evaluators[1].seen) == [cell.score_key for cell in cells]
    assert all(evaluator.seen for evaluator in evaluators)
    for summary in summaries:
        assert len(summary.evaluated) + len(summary.before) == 12
    assert len(scores_on_disk(tmp_path)) == 12


def test_a_claim_is_held_against_everyone_until_released(tmp_path: Path) -> None:
    claim = try_claim(tmp_path, "s000")
    assert try_claim(tmp_path, "s000") is None
    assert holder(tmp_path, "s000") == f"process {os.getpid()} on {socket.gethostname()}"
    claim.release()
    again = try_claim(tmp_path, "s000")
    assert again is not None
    again.release()


def test_a_cell_that_another_runner_holds_is_waited_for(tmp_path: Path) -> None:
    cells = make_cells(2)
    claim = try_claim(tmp_path / LOCKS, "s000")
    timer = threading.Timer(0.5, claim.release)
    timer.start()
    evaluator = FakeEvaluator()
    run(tmp_path, cells, evaluator)
    timer.join()
    assert evaluator.seen == ["s001", "s000"]  # the free one first


def test_the_bar_shows_cells_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = make_cells(8)
    run(tmp_path, cells[:4], FakeEvaluator())
    evaluator = FakeEvaluator(delay_s=0.15)
    run_cells(tmp_path, cells, InProcessExecutor(evaluator), progress=True)
    shown = capsys.readouterr().err.split("\r")
    assert any("4/8" in line for line in shown[:6])
    assert re.search(r"8/8 \[00:0\d<00:00", shown[-1])
    assert any(re.search(r"[67]/8 \[00:0\d<00:0\d", line) for line in shown)  # time left
    run_cells(tmp_path, cells, InProcessExecutor(evaluator))
    assert capsys.readouterr().err == ""  # no terminal, no bar


def test_nothing_heavy_is_imported_by_the_loop() -> None:
    code = (
        "import sys, ablations.runner.loop, ablations.runner.processes, ablations.runner.run\n"
        "heavy = {'vllm', 'lm_eval', 'ray', 'matplotlib', 'mergekit'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
