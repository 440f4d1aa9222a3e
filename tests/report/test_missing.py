"""A task that no cell has answered: it stays in the table, and the report says why."""

import shutil
from pathlib import Path

import pytest

from ablations.report.bottom_line import answer_text, bottom_line
from ablations.report.compose import compose
from ablations.report.missing import failure_problems, missing_tasks
from ablations.runner.records import Failure, Run, load_run, write_failure
from tests.report.runs import study_of, write_run

REASON = "story: the data is not there.\nMore of it"


def _without(run: Run, task: str, cells: int, reason: str = REASON) -> Run:
    """Return `run` with a task failed in its first cells."""
    for cell in run.head.cells[:cells]:
        key = cell.records[task]
        shutil.rmtree(run.path / "records" / key)
        said = {"error": reason, "when": "2026-11-01", "attempt": 1}
        write_failure(run.path, Failure(key=key, task=task, label=cell.label, **said))
    return load_run(run.path)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    study = study_of(
        baseline=["soup"],
        vary={"bottom_layers": [1, 2]},
        evaluate={"tasks": ["math_sw", "story_sw", "math_en"]},
    )
    return write_run(tmp_path, study, lambda _, __: 0.0, items=30)


def test_a_task_that_failed_everywhere_is_a_column_of_gaps(run: Run) -> None:
    failed = _without(run, "story_sw", 3)
    assert missing_tasks(failed) == ("story_sw",)
    report, _ = compose(failed, draw=False)
    (table,) = report.lead
    assert table.columns == ("model", "math, Swahili", "story, Swahili", "math, English")
    assert [row[2].is_gap for row in table.rows] == [True] * 3
    assert report.problems[0].startswith(
        "story_sw failed in all 3 cells, with: story: the data is not there. The same "
    )
    assert "Warning: story_sw failed in all 3 cells" in answer_text(failed)


def test_preliminary_counts_results_and_names_the_task(run: Run) -> None:
    (first, *_) = bottom_line(_without(run, "story_sw", 3))
    assert first.startswith(
        "Preliminary: 3 of 9 results (a task in a cell) are missing, all of story, Swahili among "
        "them. On math, Swahili, "
    )


def test_a_task_that_failed_in_some_cells(run: Run) -> None:
    failed = _without(run, "story_sw", 1)
    assert missing_tasks(failed) == ()
    (problem,) = failure_problems(failed)
    assert problem.startswith("story_sw failed in 1 of 3 cells (the first is soup math swahili), ")


def test_tasks_that_failed_alike_share_a_sentence(run: Run) -> None:
    failed = _without(_without(run, "story_sw", 2), "math_en", 2)
    (problem,) = failure_problems(failed)
    assert problem.startswith("story_sw, math_en failed in 2 of 3 cells ")
    assert failure_problems(_without(failed, "math_sw", 1, "another reason"))[0].endswith(
        "another reason. The same layerswap run tries again."
    )
