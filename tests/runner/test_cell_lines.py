"""The line of a finished cell."""

from ablations.runner.cell_lines import show_scores
from ablations.runner.jobs import run_cells
from tests.runner.fakes import FakeEvaluator, evaluations, make_cells

TASKS = ("pocket_math_sw", "pocket_math_en", "pocket_translate_en_sw")


def test_a_cell_is_its_label_and_its_scores_within_the_width(capsys) -> None:
    (cell,) = make_cells(1, tasks=TASKS)
    found = evaluations(cell)
    show_scores(cell, {task: found[task] for task in TASKS[:2]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bottom_layers=0  math, Swahili: ")
    assert f"{100 * found[TASKS[0]].scores[0].value:.1f} [" in lines[0]
    assert lines[-1].endswith("translate, English to Swahili: failed")
    assert len(lines) == 2
    assert all(len(line) <= 100 for line in lines)


def test_a_run_prints_each_cell_when_it_has_ended(tmp_path, capsys) -> None:
    cells = make_cells(4, per_group=2)
    run_cells(tmp_path, cells, FakeEvaluator(), progress=False, shows=[show_scores])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [cell.label for cell in cells]
    run_cells(tmp_path, cells, FakeEvaluator(), progress=False, shows=[show_scores])
    assert capsys.readouterr().out == ""  # what was finished before is not repeated
