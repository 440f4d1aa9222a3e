"""Table 6: merges of pairs and merges of soups, from several runs that asked the same."""

import re
from pathlib import Path

import pytest

from ablations.report.compose import compose
from ablations.report.document import Table
from ablations.runner.records import Run, load_run
from layerswap_method.errors import InputError
from tests.report.runs import Point, study_of, write_run
from tests.report.test_command import invoke_report

POOLS = {"task": ["m_1", "m_2"], "language": {"sw": ["s_1", "s_2"], "te": ["t_1", "t_2"]}}
EVALUATE = {"languages": {"sw": ["mgsm_sw"], "te": ["mgsm_te"]}}


def _right(point: Point, task: str) -> float:
    return 0.0


def _souped(folder: Path, code: str | None, name: str, language: int) -> Run:
    """Return a run of one language, or of none, whose only merge has several experts a role."""
    experts = {"task": ["m_1"], "language": {code: [f"{code[0]}_1"]} if code else ["s_1"]}
    evaluate = {"languages": {code: [f"mgsm_{code}"]}} if code else {"tasks": ["mgsm_sw"]}
    study = study_of(name=name, experts=experts, evaluate=evaluate)
    run = write_run(folder, study, lambda _, __: 1.0, items=40 if code else 250)
    for path in run.path.glob("records/*/merge.yml"):
        more = "- {model: experts/other, parameters: {role: task}}\n"
        more += "- {model: experts/other, parameters: {role: language}}\n" * (language - 1)
        path.write_text(path.read_text() + more)
    return load_run(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    study = study_of(name="pairs", experts=POOLS, baseline=["soup"], evaluate=EVALUATE)
    pairs = write_run(tmp_path / "pairs", study, _right, items=40)
    return [
        pairs,
        _souped(tmp_path / "sw", "sw", "soups_sw", 2),
        _souped(tmp_path / "te", "te", "soups_te", 2),
        _souped(tmp_path / "all", "te", "soup_of_all", 4),
    ]


def _table(run: Run, others: list[Run]) -> Table:
    report, _ = compose(run, others, draw=False)
    (table,) = [table for table in report.tables if table.key == "souping"]
    return table


def test_runs_of_soups_stand_beside_the_pairs(runs: list[Run]) -> None:
    table = _table(runs[0], runs[1:])
    assert table.columns == (
        *("task", "soup, pairwise", "swap, pairwise"),
        "swap, soup of 2 task experts × soup of 2 language experts",
        "swap, soup of 2 task experts × soup of 4 language experts",
    )
    sw, te = table.rows
    assert [row[0].text for row in table.rows] == [
        *("mgsm, Swahili, exact match", "mgsm, Telugu, exact match"),
    ]
    # Each from the run that has it: Swahili from the second, Telugu from the third and fourth.
    values = [run.cells[0].scores[0].value for run in runs[1:]]
    assert (sw[3].value, te[3].value, te[4].value) == tuple(values)
    assert sw[4].is_gap
    pairs = [
        *(c.scores[0].value for c in runs[0].cells if (c.kind, c.language) == ("recipe", "sw")),
    ]
    assert len(pairs) == 4
    assert sw[2].value == pytest.approx(sum(pairs) / 4)
    assert any("same items and same prompts" in note for note in table.notes)


def test_a_run_that_names_no_language_and_soups_of_other_experts(tmp_path: Path) -> None:
    """The recipe of such a run names its experts; the pairs' run has joint experts besides."""
    study = study_of(
        name="pairs",
        experts={"language": {"sw": ["s_1"]}},
        baseline=["soup"],
        vary=[{"experts.task": ["m_1", "m_2"]}, {"experts.task": ["joint"]}],
        evaluate={"tasks": ["mgsm_sw"]},
    )
    pairs = write_run(tmp_path / "pairs", study, lambda p, _: 4.0 * (p.experts["task"] == "joint"))
    for cell in pairs.cells:
        if cell.kind == "recipe" and cell.experts["task"] == "joint":  # is the expert itself
            (cell.tasks[0].folder / "merge.yml").write_text("merge_method: passthrough\n")
    souped = _souped(tmp_path / "soup", None, "souped", 2)
    table = _table(load_run(pairs.path), [souped])
    ((_, soup, _, swap),) = table.rows
    values = {cell.label: cell.scores[0].value for cell in pairs.cells}
    own = [value for label, value in values.items() if label.startswith("soup m_")]
    assert len(own) == 2
    assert soup.value == pytest.approx(sum(own) / 2)
    assert swap.value == souped.cells[0].scores[0].value


def test_other_runs_change_nothing_else(runs: list[Run]) -> None:
    alone, compared = compose(runs[0], draw=False)
    resolve_from, same = compose(runs[0], runs[1:], draw=False)
    assert compared == same
    kept = [table for table in beside.tables if table.key != "souping"]
    assert kept == list(alone.tables)
    assert (alone.bottom_line, alone.details, alone.facts) == (
        *(beside.bottom_line, beside.details, beside.facts),
    )


def test_a_run_that_asked_something_else_is_refused(runs: list[Run], tmp_path: Path) -> None:
    for path in (runs[1].path / "records").glob("*/samples.jsonl"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'"prompt_hash":"p7"', '"prompt_hash":"q7"', text))
    told = (
        "mgsm_sw was asked in another way than in .*: 39 of 40 and 40 items are the same with the"
    )
    with pytest.raises(InputError, match=told):
        compose(runs[0], [runs[1]], draw=False)
    study = study_of(evaluate={"tasks": ["belebele_sw"]})
    other = write_run(tmp_path / "other", study, _right, items=5)
    with pytest.raises(InputError, match=r"no task in common with .*; it has belebele_sw, the"):
        compose(runs[0], [other], draw=False)


def test_the_command_takes_several_runs(runs: list[Run], tmp_path: Path) -> None:
    paths = [run.path for run in runs]
    code, _ = invoke_report(*paths, "--format", "md", "--out", tmp_path / "out", "--published")
    assert code == 0
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "swap, soup of 2 task experts × soup of 4 language experts" in text
    assert "Published: Table 6 of arXiv 2410.01335" in text
