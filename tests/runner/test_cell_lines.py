"""The line of a finished cell: aligned, within 100 columns, whatever the labels and tasks."""

import dataclasses

import pytest

from ablations.runner.cell_lines import CellLines
from ablations.runner.jobs import run_cells
from ablations.runner.work import items_of
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell
from tests.runner.fakes import FakeEvaluator, fake_evaluation, make_cells

TASKS = ("pocket_math_sw", "pocket_math_en", "pocket_translate_en_sw")


def evaluations(cell: Cell) -> dict[str, Evaluation]:
    return {work.task: fake_evaluation(work) for work in items_of(cell)}


def printed(cells: list[Cell], capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = CellLines(cells)
    for cell in cells:
        lines.show(cell, evaluations(cell))
    return capsys.readouterr().out.splitlines()


def test_a_cell_is_a_line_below_one_head(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = printed(make_cells(3, tasks=TASKS), capsys)
    assert head.split() == ["cell", "math_sw", "math_en", "translate_en_sw"]
    assert len(rows) == 3
    assert all(len(line) <= 100 for line in (head, *rows))
    ends = [[place for place, sign in enumerate(row) if sign == "]"] for row in rows]
    assert ends[0] == ends[1] == ends[2]
    assert [head.index(name) + len(name) - 1 for name in head.split()[1:]] == ends[0]
    score = fake_evaluation(next(items_of(make_cells(1, tasks=TASKS)[0]))).scores[0]
    assert rows[0].startswith("bottom_layers=0")
    assert f"{100 * score.value:.1f} [" in rows[0]


def test_long_labels_and_many_tasks_stay_within_the_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = [f"layerswap_mgsm_{code}" for code in ("sw", "te", "bn", "ja", "en")]
    cells = [
        dataclasses.replace(cell, label=f"{cell.label} bottom_transition=4 weighting=magnitude")
        for cell in make_cells(2, tasks=tasks)
    ]
    lines = printed(cells, capsys)
    assert all(len(line) <= 100 for line in lines)
    assert sum("weighting=magnitude" in line for line in lines) == 2
    assert sum(line.count("[") for line in lines) == 10


def test_a_task_that_failed_or_is_not_asked_is_no_score(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = make_cells(2, tasks=TASKS)
    second = dataclasses.replace(second, score_keys={TASKS[0]: second.score_keys[TASKS[0]]})
    lines = CellLines([first, second])
    lines.show(first, {TASKS[0]: evaluations(first)[TASKS[0]]})
    lines.show(second, evaluations(second))
    _, partly, single = capsys.readouterr().out.splitlines()
    assert partly.count("failed") == 2
    assert single.count("[") == 1
    assert "failed" not in single


def test_a_run_prints_each_cell_when_it_has_ended(tmp_path, capsys) -> None:
    cells = make_cells(4, per_group=2, tasks=TASKS)
    show = CellLines(cells).show
    run_cells(tmp_path, cells, FakeEvaluator(), progress=False, shows=[show])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [cell.label for cell in cells]
    run_cells(tmp_path, cells, FakeEvaluator(), progress=False, shows=[show])
    assert capsys.readouterr().out == ""  # what was finished before is not repeated
