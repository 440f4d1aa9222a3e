"""What reports say of the tasks behind the numbers."""

from pathlib import Path

import pytest

from ablations.report.compose import compose
from ablations.report.merged import as_merged
from ablations.report.protocol import protocol_notes
from ablations.runner.records import Run
from ablations.scoring.records import TaskScore
from ablations.statistics.intervals import wilson_interval
from tests.report.runs import study_of, write_run


def _score(metric: str, hits: int) -> TaskScore:
    return TaskScore(
        task="mgsm_sw",
        metric=metric,
        filter="strict-match",
        value=hits / 50,
        is_share=True,
        interval=wilson_interval(hits, 50),
        stderr=0.01,
        n=50,
        higher_is_better=metric == "language_fidelity",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three cells: all skip a task, two have a note, one lost a tenth of its answers."""
    study = study_of(name="notes", baseline=["task_expert"], vary={"bottom_layers": [1, 2]})
    folder: Path = tmp_path_factory.mktemp("notes")
    plain = write_run(folder, study, lambda point, task: 0.0, items=50)
    cut = "mgsm_sw: 50 of 50 prompts do not fit"
    cells = []
    for place, cell in enumerate(plain.cells):
        first, *others = cell.tasks
        said = {
            "notes": (cut,) if place else (),
            "scores": (
                *first.evaluation.scores,
                _score("language_fidelity", 49),
                _score("truncated", [0, 1, 5][place]),
            ),
        }
        first = first.model_copy(update={"evaluation": first.evaluation.model_copy(update=said)})
        skipped = {"mbpp_sw": "needs --allow-code-execution"}
        cells.append(cell.model_copy(update={"skipped": skipped, "tasks": (first, *others)}))
    return plain.model_copy(update={"cells": tuple(cells)})


def test_every_note_is_there_once_with_the_cells_it_is_about(run: Run) -> None:
    notes = protocol_notes(run)
    labels = [cell.label for cell in run.cells]
    assert notes[0] == "mbpp_sw: skipped: needs --allow-code-execution"
    assert notes[1] == f"mgsm_sw: 50 of 50 prompts do not fit (cells {labels[1]}; {labels[2]})"
    # One answer of fifty is within a few percent; five are not.
    assert notes[2].startswith(f"mgsm_sw: up to 10.0 % of the answers of a cell ({labels[2]})")
    assert "language_fidelity" in notes[3]
    assert len(notes) == 4


def test_the_report_has_them_and_shows_the_tasks_own_metric(run: Run) -> None:
    report, _ = compose(run, draw=False)
    text = "\n".join(report.notes)
    merged, _ = as_merged(run)  # a report names cells by what was merged
    for note in protocol_notes(merged):
        assert note in text
    assert "truncated (strict-match)" not in text
    assert "exact_match (strict-match)" in text


def test_a_run_without_such_tasks_has_no_such_note(tmp_path: Path) -> None:
    study = study_of(name="plain", baseline=["task_expert"], vary={"bottom_layers": [1]})
    assert protocol_notes(write_run(tmp_path, study, lambda point, task: 0.0, items=20)) == []
