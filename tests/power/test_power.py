"""What a finished run, or a study that nobody has run, says of the differences that it can show."""

from pathlib import Path

import numpy as np
import pytest

from ablations.power import ASSUMED, power_line, power_of
from ablations.report.analysis import analyse
from ablations.report.comparisons import rows_of
from ablations.report.power import (
    _differences,
    measured_differences,
    power_note,
)
from ablations.report.write import make_report
from ablations.runs.run import load_run
from ablations.search.split import item_keys, split_items
from ablations.statistics.power import Design, items_needed, power
from layerswap_method.errors import InputError
from tests.report.runs import BASELINES, level, study_of, write_run
from tests.standins.studies import study_document, write_tasks, write_yaml

RESULTS = Path(__file__).parents[2] / "ablations" / "results"


def _of_run(run):
    return measured_differences(analyse(run)).entries


def test_what_is_assumed_is_what_the_shipped_results_have():
    runs = ("real_model", "real_model_french", "real_model_layers")
    spreads = [entry.spread for name in runs for entry in _of_run(load_run(RESULTS / name))]
    assert len(spreads) > 10
    scores = [spread.base_rate + spread.difference / 2 for spread in spreads]
    assert ASSUMED.base_rate == pytest.approx(np.median(scores), abs=0.005)
    for name in ("items", "rest", "task", "language", "pair"):
        median = np.median([getattr(spread, name) for spread in spreads])
        assert getattr(ASSUMED, name) == pytest.approx(median, rel=0.03), name


def test_a_run_says_what_it_could_have_seen(tmp_path):
    run = write_run(tmp_path / "run", study_of(baseline=BASELINES), level)
    result = power_of(str(run.path), difference=5)
    rows = result.table.to_dict("records")
    assert {row["items"] for row in rows} == {250}
    assert result.alpha == pytest.approx(0.05 / len(rows))
    for row, entry in zip(rows, _of_run(run), strict=True):
        assert power(row["smallest"], entry.spread, entry.design, result.alpha) >= 0.8
        assert power(0.95 * row["smallest"], entry.spread, entry.design, result.alpha) < 0.8
        assert row["items_needed"] == items_needed(0.05, entry.spread, entry.design, result.alpha)
    shown = [f"{100 * value:.1f} points" in result.sentence for value in result.table["smallest"]]
    assert any(shown)
    assert (
        f"{power_note(analyse(run))} (layerswap power with the folder of the run says more.)"
        in make_report(run, draw=False).notes
    )


def test_differences_are_the_reports_own(tmp_path):
    run = write_run(tmp_path / "run", study_of(baseline=BASELINES), level)
    analysis = analyse(run)
    rows = [row for row in analysis.comparisons if row.family == "primary"]
    assert rows
    for row in rows:
        matrix = analysis.shown.matrices[row.task]
        sides = [rows_of(matrix, [name], "") for name in (row.first, row.second)]
        assert _differences(*sides).mean() == pytest.approx(row.difference)


def test_comparisons_of_other_experts_are_corrected_for_too():
    result = power_of(str(RESULTS / "table_2"), items=300)
    rows = analyse(load_run(RESULTS / "table_2")).comparisons
    tested = [row for row in rows if row.family == "primary" and row.p is not None]
    assert (len(result.table), len(tested)) == (4, 5)
    assert result.alpha == pytest.approx(0.05 / 5)
    assert "level over 5 planned comparisons" in result.notes[0]
    assert result.notes[1] == (
        "Not in the table: 1 comparison whose two sides have different experts."
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("peft", "two sides of every planned comparison have different experts"),
        ("different_bases", "two sides of every planned comparison have different experts"),
        ("real_model_lora_hf", "layerswap run finishes it"),
        ("real_model_prefix", "no comparison is planned; write report:"),
    ],
)
def test_a_run_without_a_difference_to_measure_says_why(run, words):
    with pytest.raises(InputError, match=words):
        power_of(str(RESULTS / run))


def test_the_sides_of_a_study_that_have_other_experts_are_no_pairs():
    """They were taken for pairs of all their experts: 6 × 6, of two independent 3 × 3."""
    with pytest.raises(InputError, match=r"peft.yml: the two sides .* have different experts"):
        power_of("peft", items=300)
    result = power_of("table_2", items=300)
    assert result.notes[1] == power_of(str(RESULTS / "table_2"), items=300).notes[1]
    assert "level over 5 planned comparisons" in result.notes[0]


def test_a_run_with_some_pairs_missing_is_not_finished(tmp_path):
    experts = {"task": ["a", "b"], "language": {"sw": ["c", "d"]}}
    run = write_run(tmp_path / "run", study_of(baseline=BASELINES, experts=experts), level)
    for cell in run.cells:
        if cell.experts == {"task": "a", "language": "c", "base": "base"}:
            for record in cell.task_records:
                (run.path / "records" / f"{record.key}.jsonl").unlink(missing_ok=True)
    planned = measured_differences(analyse(load_run(run.path)))
    assert not planned.entries
    assert not planned.other_experts
    assert planned.incomplete
    with pytest.raises(InputError, match="layerswap run finishes it"):
        power_of(str(run.path))


def test_a_study_that_nobody_has_run_is_assumed_to_be_like_ours(tmp_path):
    experts = {"base": "base", "task": ["a", "b", "c"], "language": ["d", "e", "f"]}
    file = write_yaml(tmp_path / "study.yml", study_document(experts=experts))
    result = power_of(str(file), items=300)
    assert {*result.table["task_experts"], *result.table["language_experts"]} == {3}
    design = Design(300, 3, 3)
    assert power(result.table["smallest"][0], ASSUMED, design, result.alpha) >= 0.8
    assert "assumed" in result.notes[0]


@pytest.mark.slow
def test_the_table_of_items_and_experts_is_shown(tmp_path):
    file = write_yaml(tmp_path / "study.yml", study_document())
    result = power_of(str(file), items=250)
    assert list(result.grid.columns) == [1, 2, 3, 5]
    assert result.grid.loc[250, 1] == result.table["smallest"][0]
    assert "5 × 5 experts" in str(result)


def test_experts_are_those_of_the_tasks_language():
    table = power_of("real_model", items=250).table
    assert len({*table["task"]}) == 3
    assert {*table["task_experts"], *table["language_experts"]} == {3}


def test_one_pair_of_experts_says_what_cannot_be_said(tmp_path):
    file = write_yaml(tmp_path / "study.yml", study_document())
    result = power_of(str(file), items=100)
    assert "One pair of experts does not say how experts differ" in result.notes[1]
    assert "they hold for that pair, not for other experts" in result.sentence


def test_every_planned_comparison_counts(tmp_path):
    file = write_yaml(tmp_path / "study.yml", study_document(baseline=["soup", "task_expert"]))
    result = power_of(str(file), items=100)
    assert len(result.table) == 4 * 2  # four settings, each against soup and task expert
    assert result.alpha == pytest.approx(0.05 / 8)


def test_a_comparison_is_planned_in_the_languages_of_its_experts(tmp_path):
    """As its report has it: none on a German task of models with the Swahili expert."""
    codes = {"swahili": "sw", "german": "de"}
    changes = {
        "experts": {"task": ["math"], "language": {code: [name] for name, code in codes.items()}},
        "evaluate": {"languages": {code: [f"layerswap_mgsm_{code}"] for code in codes.values()}},
        "baseline": ["soup"],
        "vary": [{"experts.language": name} for name in codes],
    }
    file = write_yaml(tmp_path / "study.yml", study_document(**changes))
    table = power_of(str(file), items=100).table
    assert {*table["task"]} == {"layerswap_mgsm_sw", "layerswap_mgsm_de"}
    assert all(
        (name in first) == task.endswith(code)
        for first, task in zip(table["first"], table["task"], strict=True)
        for name, code in codes.items()
    )
    bare = {"recipe": None, "vary": None, "baseline": ["base", "task_expert", "language_expert"]}
    file = write_yaml(tmp_path / "bare.yml", study_document(**{**changes, **bare}))
    rows = power_of(str(file), items=100).table
    pairs = [*zip(rows["first"], rows["second"], rows["task"], strict=True)]
    assert sum({*pair[:2]} == {"task expert", "base"} for pair in pairs) == 1, pairs


def test_a_study_with_a_search_has_the_power_of_what_it_reports(tmp_path):
    search = {"report": "words", "share": 0.3}
    file = write_yaml(tmp_path / "study.yml", study_document(search=search))
    result = power_of(str(file), items=100)
    rivals = ["soup", "task expert", "language expert"]
    rows = zip(result.table["first"], result.table["second"], strict=True)
    firsts = ["winner", "first runner-up", "second runner-up"]
    assert {*rows} == {(first, rival) for first in firsts for rival in rivals}
    assert result.alpha == pytest.approx(0.05 / 9)
    assert "winner minus soup" in str(result)


def test_items_are_those_that_the_tasks_have(tmp_path):
    write_tasks(tmp_path / "tasks", ["words"], items=20)
    evaluate = {"tasks": ["words"], "include_path": "tasks"}
    file = write_yaml(tmp_path / "study.yml", study_document(evaluate=evaluate))
    assert {*power_of(str(file)).table["items"]} == {20}
    share = {"search": {"share": 0.75, "seed": 1}}
    searched = write_yaml(tmp_path / "search.yml", study_document(evaluate=evaluate, **share))
    rows = [{"number": n} for n in range(20)]
    reported = split_items(*item_keys([rows]), 1, 0.75).report
    (items,) = {*power_of(str(searched)).table["items"]}
    assert items == len(reported) < 10


def test_a_measured_pair_says_nothing_of_other_experts(tmp_path):
    study = study_of(baseline=BASELINES, experts={"task": ["a"], "language": {"sw": ["b"]}})
    run = write_run(tmp_path / "run", study, level)
    result = power_of(str(run.path), difference=5)
    assert list(result.grid.columns) == [1]
    assert result.table["experts_needed"].isna().all()
    assert "for that pair." in result.sentence
    assert max(map(len, str(result).splitlines())) <= 80


def test_scores_near_0_are_said_to_say_too_little(tmp_path):
    document = study_document(experts={"base": "base", "task": ["a", "b"], "language": ["c", "d"]})
    file = write_yaml(tmp_path / "study.yml", document)
    result = power_of(str(file), items=100, base_rate=2, difference=5)
    assert result.table["smallest"].isna().all()
    assert result.table["items_needed"].isna().all()
    assert not result.table["is_stated"].any()
    assert "Scores so near 0 or 100 do not say" in result.sentence


def test_assumptions_can_be_stated(tmp_path):
    document = study_document(experts={"base": "base", "task": ["a", "b"], "language": ["c", "d"]})
    file = str(write_yaml(tmp_path / "study.yml", document))
    stated = {"base_rate": 40, "disagreement": 30, "expert_sd": 2}
    row = power_of(file, items=100, **stated).table.iloc[0]
    assert row["base_rate"] == pytest.approx(0.4)
    assert row["disagreement"] == pytest.approx(0.3)
    assert row["task_sd"] == row["language_sd"] == pytest.approx(0.02)
    closer = power_of(file, items=100, **{**stated, "expert_sd": 0}).table.iloc[0]
    assert closer["smallest"] < row["smallest"]


def test_a_study_without_a_number_of_items_names_the_command():
    study = study_of(baseline=BASELINES)
    evaluate = study.evaluate.model_copy(update={"limit": None})
    line = power_line(study.model_copy(update={"evaluate": evaluate}), "my studies/a.yml")
    assert line == "differences that it can show: layerswap power 'my studies/a.yml'"


def test_a_run_is_not_assumed(tmp_path):
    run = write_run(tmp_path / "run", study_of(baseline=BASELINES), level)
    with pytest.raises(InputError, match="a run has its own answers; leave out --expert-sd"):
        power_of(str(run.path), expert_sd=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "(?s)how many items its tasks have is not known here: .*'words'.* --items 250"),
        ({"items": 100, "difference": 0.0}, "--difference is 0; give points above 0"),
        ({"items": 9, "base_rate": 10, "disagreement": 40}, "disagree on 20.0 % at the most"),
        ({"items": 9, "base_rate": 100}, "--base-rate is 100; give percent above 0 and below 100"),
        ({"items": 9, "expert_sd": -1}, "--expert-sd is -1; give points from 0"),
    ],
)
def test_what_is_missing_is_said(options, words, tmp_path):
    document = study_document()
    document["evaluate"].pop("limit", None)
    file = write_yaml(tmp_path / "study.yml", document)
    with pytest.raises(InputError, match=words):
        power_of(str(file), **options)
