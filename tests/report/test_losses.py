"""The table of what a swap gained and lost: from the paired tests, the answers' language too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablations.report.compose import compose
from ablations.report.document import Table
from ablations.runner.records import Run
from tests.report.runs import Point, study_of, write_run

BASELINES = ["base", "task_expert", "language_expert"]
SKILL = {"base": -2.0, "task_expert": -1.0, "language_expert": -1.0, "recipe": 1.0}
SPOKEN = {"base": 0.9, "task_expert": 0.5, "language_expert": 1.0, "recipe": 0.6}


def _skill(point: Point, task: str) -> float:
    # In English the swap falls behind the task expert, and stays level with the other.
    english = {"task_expert": 2.0, "recipe": -1.0}
    if task.endswith("en"):
        return english.get(point.kind, SKILL[point.kind])
    return SKILL[point.kind]


def _losses(run: Run) -> Table | None:
    report, _ = compose(run, draw=False)
    return next((table for table in report.tables if table.key == "losses"), None)


def test_gained_lost_and_no_evidence_by_task(tmp_path: Path) -> None:
    study = study_of(baseline=BASELINES)
    run = write_run(tmp_path, study, _skill, fidelity=lambda point, task: SPOKEN[point.kind])
    table = _losses(run)
    assert table is not None
    assert table.columns == (
        *("task", "model", "against the base", "against the task expert"),
        *("against the language expert", "against the better expert"),
    )
    found = {
        row[0].text: [entry.text.split(" +")[0].split(" -")[0] for entry in row[2:]]
        for row in table.rows
    }
    assert found == {
        "math, Swahili": ["gained", "gained", "gained", "gained"],
        "math, Swahili: answers in the language": ["lost", "gained", "lost", "lost"],
        "math, English": ["gained", "lost", "no evidence", "lost"],
        "math, English: answers in the language": ["lost", "gained", "lost", "lost"],
    }
    spoken = table.rows[1]
    assert spoken[2].value == pytest.approx(-0.3)
    assert spoken[2].text.startswith("lost -30.0 [-3")
    assert "Against the base: 2 gained, 2 lost, 0 without evidence." in table.notes
    assert "Against the task expert: 3 gained, 1 lost, 0 without evidence." in table.notes


def test_two_equal_models_show_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(baseline=["base"]), lambda _, __: 0.0)
    table = _losses(run)
    assert table is not None
    assert table.columns == ("task", "model", "against the base")
    assert all(row[2].text.startswith("no evidence ") for row in table.rows)


def test_pairs_of_experts_are_averaged_and_gaps_are_gaps(nine_pairs: Run, grid: Run) -> None:
    several = _losses(nine_pairs)
    assert several is not None
    assert {row[1].text for row in several.rows} == {f"layer swap t_b={n} t_u={n}" for n in (0, 1)}
    table = _losses(grid)
    assert table is not None
    assert {row[1].text for row in table.rows} == {"average of 6 settings"}


def test_left_out_without_a_rival_or_where_other_tables_are_asked(tmp_path: Path) -> None:
    alone = study_of(baseline=["soup"])
    assert _losses(write_run(tmp_path / "alone", alone, lambda _, __: 0.0, items=20)) is None
    for tables, is_there in ((["pairs"], False), (["losses"], True)):
        study = study_of(baseline=["base"], report={"tables": tables})
        run = write_run(tmp_path / tables[0], study, lambda _, __: 0.0, items=20)
        assert (_losses(run) is not None) == is_there
