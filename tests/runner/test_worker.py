"""The loop over cells with an evaluator that lives here: no model, real files."""

import logging
import os
import re
import socket
import threading
from pathlib import Path

import pytest

from ablations.machine.locks import holder, try_claim
from ablations.runner import records
from ablations.runner.jobs import run_cells, share_of
from ablations.runner.work import Done, ModelFailed, Work
from ablations.runner.worker import LOCKS
from layerswap_method.errors import LayerSwapError
from tests.runner.fakes import (
    TASK,
    FakeEvaluator,
    fake_evaluation,
    key_of,
    make_cells,
    scores_on_disk,
)


def run(out: Path, cells, evaluator: FakeEvaluator):
    return run_cells(out, cells, evaluator, progress=False)


def test_every_task_gets_a_whole_record(tmp_path: Path) -> None:
    cells = make_cells(3)
    summary = run(tmp_path, cells, FakeEvaluator())
    assert summary.evaluated == [cell.label for cell in cells]
    for index, cell in enumerate(cells):
        record = records.read_record(tmp_path, key_of(index))
        assert record is not None
        work = Work(key_of(index), cell.weights_key, cell.label, cell.merge, cell.request)
        evaluation = fake_evaluation(work)
        assert record.evaluation == evaluation.model_copy(update={"samples": ()})
        texts = {"prompts": (), "responses": ()}  # they are with the stored answers
        items = tuple(each.model_copy(update=texts) for each in evaluation.samples)
        assert tuple(record.samples()) == items
        assert record.timing_s["total"] >= 0


def test_cells_of_equal_weights_are_evaluated_once(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    summary = run(tmp_path, make_cells(6, per_group=3), evaluator)
    assert evaluator.seen == ["s000", "s001"]
    assert len(summary.evaluated) == 6
    assert list(scores_on_disk(tmp_path)) == ["s000", "s001"]


def test_what_is_new_is_asked_alone(tmp_path: Path) -> None:
    """A task, a language or a model that is added to a study; a cell that has another name."""
    run(tmp_path, make_cells(2), FakeEvaluator())
    before = scores_on_disk(tmp_path)
    evaluator = FakeEvaluator()
    run(tmp_path, make_cells(2, tasks=(TASK, "more")), evaluator)
    assert evaluator.seen == ["s000-more", "s001-more"]
    evaluator = FakeEvaluator()
    summary = run(tmp_path, make_cells(3), evaluator)
    assert evaluator.seen == ["s002"]
    assert summary.before == ["bottom_layers=0", "bottom_layers=1"]
    renamed = [cell.model_copy(update={"label": f"new {cell.label}"}) for cell in make_cells(3)]
    evaluator = FakeEvaluator()
    summary = run(tmp_path, renamed, evaluator)
    assert (evaluator.seen, len(summary.before)) == ([], 3)
    after = scores_on_disk(tmp_path)
    assert before == {key: after[key] for key in before}


def test_a_failed_cell_says_why_and_a_rerun_does_exactly_that_one(tmp_path: Path) -> None:
    cells = make_cells(4)
    summary = run(tmp_path, cells, FakeEvaluator(raising=("bottom_layers=1",)))
    assert summary.failed == {"bottom_layers=1": "bottom_layers=1: the task has raised"}
    assert len(summary.evaluated) == 3
    failure = records.read_failure(tmp_path, "s001")
    assert "raised" in failure.error
    run(tmp_path, cells, FakeEvaluator(raising=("bottom_layers=1",)))
    evaluator = FakeEvaluator()
    run(tmp_path, cells, evaluator)
    assert evaluator.seen == ["s001"]
    assert records.read_failure(tmp_path, "s001") is None
    undisturbed = tmp_path / "undisturbed"
    run(undisturbed, cells, FakeEvaluator())
    assert scores_on_disk(tmp_path) == scores_on_disk(undisturbed)


def test_a_task_that_fails_leaves_the_others_of_its_model(tmp_path: Path) -> None:
    class Raises(FakeEvaluator):
        def evaluate(self, work: Work) -> Done:
            if work.task == "more":
                raise LayerSwapError("no data")
            return super().evaluate(work)

    evaluator = Raises()
    summary = run(tmp_path, make_cells(2, tasks=("more", TASK)), evaluator)
    assert evaluator.seen == ["s000", "s001"]
    assert summary.failed["bottom_layers=0"] == "more: no data"


def test_a_model_that_fails_is_not_tried_for_every_task(tmp_path: Path) -> None:
    class Fails(FakeEvaluator):
        def evaluate(self, work: Work) -> Done:
            self.seen.append(work.score_key)
            raise ModelFailed("its merge failed")

    evaluator = Fails()
    summary = run(tmp_path, make_cells(1, tasks=("more", TASK)), evaluator)
    assert evaluator.seen == ["s000-more"]
    assert summary.failed == {"bottom_layers=0": "more, fake_math: its merge failed"}
    assert records.read_failure(tmp_path, "s000").error == "its merge failed"


def test_what_a_wrong_engine_was_asked_has_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The check at the end takes two records back; the next call asks them again."""
    cells = make_cells(4)
    summary = run(tmp_path / "run", cells, FakeEvaluator(wrong=(key_of(1), key_of(2))))
    wrong = {f"bottom_layers={index}": "the engine forgot its weights" for index in (1, 2)}
    assert summary.failed == wrong
    assert len(summary.evaluated) == 2
    assert list(scores_on_disk(tmp_path / "run")) == [key_of(0), key_of(3)]
    evaluator = FakeEvaluator()
    assert not run(tmp_path / "run", cells, evaluator).failed
    assert evaluator.seen == [key_of(1), key_of(2)]
    run(tmp_path / "undisturbed", cells, FakeEvaluator())
    assert scores_on_disk(tmp_path / "run") == scores_on_disk(tmp_path / "undisturbed")
    assert not list((tmp_path / "run" / "records").glob(".*"))


def test_a_bug_in_the_evaluator_keeps_its_traceback(tmp_path: Path) -> None:
    class Broken(FakeEvaluator):
        def evaluate(self, work):
            return {}["no such key"]

    run(tmp_path, make_cells(1), Broken())
    failure = records.read_failure(tmp_path, "s000")
    assert failure.error == "KeyError: 'no such key'"
    assert "Traceback" in failure.details


def test_a_damaged_record_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cells = make_cells(2)
    run(tmp_path, cells, FakeEvaluator())
    whole = scores_on_disk(tmp_path)
    (tmp_path / "records" / "s001.jsonl").write_text("{")
    evaluator = FakeEvaluator()
    with caplog.at_level(logging.WARNING):
        run(tmp_path, cells, evaluator)
    assert evaluator.seen == ["s001"]
    assert "damaged" in caplog.text
    assert scores_on_disk(tmp_path) == whole


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / ".s000.jsonl.0a1b2c3d").write_text("{")
    run(tmp_path, make_cells(1), FakeEvaluator())
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["s000.jsonl"]


def test_a_claim_is_held_against_everyone_until_released(tmp_path: Path) -> None:
    claim = try_claim(tmp_path, "w000")
    assert try_claim(tmp_path, "w000") is None
    assert holder(tmp_path, "w000") == f"process {os.getpid()} on {socket.gethostname()}"
    claim.release()
    again = try_claim(tmp_path, "w000")
    assert again is not None
    again.release()


def test_a_cell_that_another_runner_holds_is_waited_for(tmp_path: Path) -> None:
    cells = make_cells(2)
    claim = try_claim(tmp_path / LOCKS, "w000")
    timer = threading.Timer(0.5, claim.release)
    timer.start()
    evaluator = FakeEvaluator()
    run(tmp_path, cells, evaluator)
    timer.join()
    assert evaluator.seen == ["s001", "s000"]  # the free one first


@pytest.mark.parametrize(
    ("names", "gpus", "shares"),
    [
        ("0123", 1, ["0", "1", "2", "3", "0"]),
        ("0123", 2, ["01", "23", "01"]),
        ("01234567", 4, ["0123", "4567", "0123"]),
        ("012", 2, ["01", "01"]),
        ("01", 4, ["01", "01"]),
    ],
)
def test_every_worker_gets_as_many_gpus_as_a_model_takes(
    names: str, gpus: int, shares: list[str]
) -> None:
    assert [share_of(names, place, gpus) for place in range(len(shares))] == shares


def test_the_bar_shows_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = make_cells(8)
    run(tmp_path, cells[:4], FakeEvaluator())
    evaluator = FakeEvaluator(delay_s=0.15)
    run_cells(tmp_path, cells, evaluator, progress=True)
    shown = re.findall(r"(\d)/8 tasks", capsys.readouterr().err)
    assert {"4", "6", "8"} <= set(shown)
    assert shown == sorted(shown)
    run_cells(tmp_path, cells, evaluator)
    assert capsys.readouterr().err == ""  # no terminal, no bar
