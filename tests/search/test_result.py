"""What a search says of models whose abilities are known, and its report."""

import html

import pytest

import layerswap
from ablations.report.compare_models import compare_models
from ablations.report.write import render_html, render_markdown
from ablations.runs.evaluated_models import list_runs
from ablations.runs.run import load_run
from ablations.search.result import load_search, search_report
from layerswap_method.errors import InputError
from tests.report.runs import level
from tests.search.searches import made_search
from tests.standins.command import output_of, told

TASK = "pocket_math_sw"


def with_best(gain, loss=0.0):
    """Return abilities in which b=2 u=1 is better than all others, and may lose on reading."""

    def ability(cell, task):
        if task != TASK:
            return 0.5 - (loss if cell.kind == "recipe" else 0.0)
        is_best = cell.values == {"bottom_layers": 2, "top_layers": 1}
        return level(cell, task) + (gain if is_best else 0.0)

    return ability


def test_the_best_is_taken_where_it_is_shown(tmp_path):
    result = load_search(made_search(tmp_path, with_best(2.0)))
    assert result.taken == "b=2 u=1"
    assert result.rival == "soup"
    assert result.sentences[0].startswith(
        "Take b=2 u=1: on 250 items of math, Swahili that did not choose it is better than the soup"
    )
    assert "b=2 u=1 was shown to be better than the task expert and the language expert." in (
        result.sentences
    )
    assert result.sentences[-1] == "A note."


def test_the_answer_has_held_out_scores_and_says_who_led_while_choosing(tmp_path):
    result = load_search(made_search(tmp_path, with_best(2.0)))
    means = result.run.means.set_index(["model", "task"])
    *text, table = str(result).split("\n\n")
    led = "Of soup and experts the soup had the best score on the items that choose"
    assert led in " ".join("".join(text).split())
    head, _, *rows = table.splitlines()
    assert head.split("  ")[0] == "held-out score"
    page = result._repr_html_()
    assert f"<b>{html.escape(result.search.study.question)}</b>" in page
    cells = [cell.strip() for row in rows for cell in row.split("  ") if cell]
    assert [cell for cell in cells if f"<td>{cell}</td>" not in page] == []
    names = [*result.finalists, "task expert", "language expert", "soup", "base"]
    for name, row in zip(names, rows, strict=True):
        score = means.loc[(name, TASK)]
        values = (score["value"], score["low"], score["high"])
        assert row.startswith(name)
        assert row.endswith("{} [{}, {}]".format(*(f"{100 * value:.1f}" for value in values)))


def test_without_evidence_the_comparator_is_taken(tmp_path):
    result = load_search(made_search(tmp_path))
    assert result.taken == "soup"
    assert result.sentences[0] == "No setting was shown to be better than the soup; take the soup."
    assert "was not shown to beat the soup" in result.sentences[1]
    assert len(result.finalists) == 3


def test_only_held_out_comparisons_of_finalists_are_corrected(tmp_path):
    result = load_search(made_search(tmp_path))
    primary = result.comparisons[result.comparisons["family"] == "primary"]
    assert {*primary["first"]} == {*result.finalists}
    assert {*primary["second"]} == {"soup", "task expert", "language expert"}
    assert len(primary) == 9
    assert {*primary["items"]} == {250}


def test_comparators_are_never_dropped_and_the_worse_half_is(tmp_path):
    frame = load_search(made_search(tmp_path, with_best(2.0))).rounds
    by_round = {number: part.set_index("model") for number, part in frame.groupby("round")}
    assert [len(part) for part in by_round.values()] == [6 + 4, 3 + 4]
    for part in by_round.values():
        assert part[part["is_comparator"]]["goes_on"].all()
        own = part[~part["is_comparator"]]
        assert own[own["goes_on"]]["score"].min() >= own[~own["goes_on"]]["score"].max() or (
            own["goes_on"].all()
        )


def test_a_setting_below_the_floor_comes_last_and_is_not_taken(tmp_path):
    def ability(cell, task):
        is_best = cell.values == {"bottom_layers": 2, "top_layers": 1}
        if task != TASK:
            return -2.0 if is_best else 0.5
        return level(cell, task) + 2 * is_best

    floors = {"pocket_comprehension_sw": 10.0}
    result = load_search(made_search(tmp_path, ability, floors=floors))
    first = result.rounds[(result.rounds["round"] == 1) & ~result.rounds["is_comparator"]]
    assert first.iloc[-1]["model"] == "b=2 u=1"
    assert first.iloc[-1]["lost"] > 20
    assert "b=2 u=1" not in result.finalists
    assert first["lost"].iloc[0] == 0


def test_all_below_the_floor_leaves_the_comparator(tmp_path):
    floors = {"pocket_comprehension_sw": 2.0}
    result = load_search(made_search(tmp_path, with_best(2.0, loss=2.0), floors=floors))
    assert result.taken == "soup"
    assert any("does not keep its floor" in line for line in result.sentences)


def test_pairs_that_report_are_others(tmp_path):
    experts = {"task": ["m_1", "m_2", "m_3"], "language": {"sw": ["s_1", "s_2"]}}
    result = load_search(made_search(tmp_path, experts=experts))
    of_rounds = {*load_search(tmp_path).search.choose_experts.names("task")}
    observed = result.run.observations
    assert of_rounds == {"m_1"}
    assert {*observed["task_expert"]} - {""} == {"m_2", "m_3"}
    assert {*observed["language_expert"]} - {""} == {"s_2"}


def test_the_report_marks_what_is_biased(tmp_path):
    folder = made_search(tmp_path, with_best(2.0))
    output = output_of("report", folder)
    assert str(folder / "report" / "report.html") in output
    assert "Take b=2 u=1" in output
    report = search_report(load_search(folder))
    assert [figure.key for figure in report.figures][:2] == ["planned", "rounds"]
    assert "too high" in report.figures[1].caption
    table = report.tables[-1]
    assert "score (biased)" in table.columns
    assert {*table.iloc[:, -1]} == {"dropped", "goes on", "comparator"}
    text = render_markdown(report)
    assert "score (biased)" in text
    assert "The rounds" in render_html(report)


def test_the_folder_of_a_search_is_a_run_and_its_rounds_are_no_results(tmp_path, monkeypatch):
    folder = made_search(tmp_path / "runs" / "search" / "best", with_best(2.0))
    monkeypatch.chdir(tmp_path)
    held_out, last = folder / "held_out", folder / "round_2"
    labels = [model.label for model in load_run(held_out).models]
    assert [tmp_path / run.folder for run in list_runs().runs] == [held_out]
    assert [*layerswap.load_run(folder).models] == labels
    pair = [name for name in labels if name in ("soup", "task expert")]
    compared, same, biased = (
        compare_models([f"{place}:{name}" for name in pair]) for place in (folder, held_out, last)
    )
    assert compared.comparisons.equals(same.comparisons)
    assert not compared.warnings
    assert biased.warnings[0].startswith("task expert, soup: scores of a round of a search")
    assert "scores of a round" not in " ".join(biased.warnings[1:])
    (held_out / "run.json").unlink()
    with pytest.raises(InputError, match="the search has not ended; run its command again"):
        layerswap.load_run(folder)


def test_a_search_that_has_not_ended_has_no_report(tmp_path):
    folder = made_search(tmp_path)
    for file in (folder / "held_out" / "records").iterdir():
        file.unlink()
        break
    result = load_search(folder)
    assert (result.run, result.taken) == (None, None)
    code, output = told("report", folder)
    assert code == 2
    assert "The search has not ended; run its command again to go on." in output


def test_a_folder_without_a_search_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no search\.json in it"):
        load_search(tmp_path)
