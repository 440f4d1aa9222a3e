"""The report of a run: its sentences, tables and files, and the command that writes it."""

import itertools
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ablations.paper.published import published_tables
from ablations.report.compare_models import compare_models
from ablations.report.comparisons import (
    BETTER,
    NO_RESULT,
    ONE_MODEL,
    SAME,
    UNCLEAR,
    WORSE,
)
from ablations.report.sentences import answer, comparison_sentences
from ablations.report.shown_tasks import ShownTasks
from ablations.report.tables import GAP, layout_tables, verdict_text
from ablations.report.write import (
    FORMATS,
    answer_text,
    make_report,
    render_html,
    render_latex,
    render_markdown,
    write_report,
)
from ablations.runs.collect import collect
from ablations.runs.observations import OBSERVATIONS
from ablations.statistics.as_text import with_interval
from ablations.study.wording import merge_note
from ablations.tasks.names import task_name
from layerswap_method.errors import InputError, LayerSwapError
from tests.report.runs import BASELINES, level, study_of, write_run
from tests.standins.command import told

VERDICTS = (BETTER, WORSE, SAME, UNCLEAR, ONE_MODEL, NO_RESULT)
CODES = ("es", "fr", "de", "sw")


def table(report, key):
    (found,) = (each for each in report.tables if each.attrs["key"] == key)
    return found


@pytest.fixture(scope="module")
def one_pair(tmp_path_factory):
    study = study_of(baseline=BASELINES)
    return write_run(tmp_path_factory.mktemp("one") / "run", study, level, items=300)


@pytest.fixture(scope="module")
def languages(tmp_path_factory):
    teams = {code: [f"{code}_{n}" for n in (1, 2, 3)] for code in CODES}
    study = study_of(
        experts={"task": ["math_1", "math_2", "math_3"], "language": teams},
        baseline=[*BASELINES, "weighted_soup"],
        evaluate={"tasks": ["mgsm_en"], "languages": {c: [f"mgsm_{c}"] for c in CODES}},
        report={"tables": ["pairs", "overview"]},
    )
    return make_report(write_run(tmp_path_factory.mktemp("languages"), study, level, items=40))


def test_few_answers_are_sentences(one_pair):
    report = make_report(one_pair, draw=False)
    rows = {row["second"]: row for row in report.comparisons.to_dict("records")[:3]}
    assert {row["family"] for row in rows.values()} == {"primary"}
    assert report.tables[0].attrs["key"] == "scores"
    text = answer_text(report)
    for name, row in rows.items():
        assert name in text
        assert f"{100 * row['difference']:+.1f}" in text
    assert rows["language expert"]["verdict"] == BETTER
    assert "beats both experts" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "no interval covers another training run" in text  # one of each


def test_many_answers_are_one_sentence_and_a_table_that_has_all(languages):
    primary = languages.comparisons[languages.comparisons["family"] == "primary"]
    assert len(primary) == 3 * 4
    shown = table(languages, "answers")
    assert list(shown["contrast"]) == [
        f"layer swap − {rival}" for rival in ("soup", "task expert", "language expert")
    ]
    numbers = [f"{100 * d:+.1f} [" for d in primary["difference"]]
    page, text = render_html(languages), answer_text(languages)
    markdown = render_markdown(languages)
    for number in numbers:
        assert any(number in cell for cell in shown.to_numpy().ravel())
        assert number in page
        assert number in text
        assert number.replace("[", "\\[") in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == sum(len(each) + 2 for each in languages.tables)
    text = " ".join(text.split())
    assert "Over 4 languages, layer swap minus soup" in text
    assert re.search(r"\d of 9 pairs of layer swap are better than both", text)


def test_planned_is_what_the_study_file_plans(languages, tmp_path):
    assert "By default, against the soup: " in answer_text(languages)
    assert "lanned" not in answer_text(languages) + render_html(languages)
    primary = {"against": ["soup", "better_expert"]}
    study = study_of(
        baseline=BASELINES, vary={"bottom_layers": [0, 1, 2]}, report={"primary": primary}
    )
    report = make_report(write_run(tmp_path / "run", study, level, items=40))
    assert "Planned, against the soup: " in answer_text(report)
    assert "By default" not in answer_text(report)
    assert (report.figures[0].key, report.figures[0].title) == (
        "planned",
        "The planned comparisons",
    )


@pytest.mark.parametrize("items", [20, 250])
def test_a_score_has_one_interval_wherever_it_stands(tmp_path, items):
    """In the run's scores.csv, the report's tables and files, and compare."""
    tasks = ["pocket_math_sw", "pocket_translate_en_sw"]
    study = study_of(baseline=["base", "soup"], evaluate={"tasks": tasks})
    run = write_run(tmp_path / "run", study, level, items=items)
    collect(run)
    write_report(make_report(run, draw=False), ["csv"], tmp_path / "report")
    files = [pd.read_csv(folder / "scores.csv") for folder in (run.path, tmp_path / "report")]
    tables = [table(make_report(run, draw=False), key) for key in ("scores", "cells")]
    compared = compare_models([f"{run.path}:{name}" for name in ("base", "soup")]).scores
    compared = compared.set_index(["model", "task"])
    rows = [row for row in files[0].to_dict("records") if row["cell"] in ("base", "soup")]
    assert len(rows) == 4
    for row in rows:
        interval = with_interval(row["value"], (row["low"], row["high"]))
        same = files[1][files[1]["cell"].eq(row["cell"]) & files[1]["task"].eq(row["task"])]
        assert same[["low", "high"]].to_numpy().tolist() == [[row["low"], row["high"]]]
        assert all(interval in frame.to_numpy().ravel() for frame in tables)
        score = compared.loc[(row["model"], row["task"])]
        assert (score["low"], score["high"]) == (row["low"], row["high"])


def test_an_interval_beside_a_corrected_verdict_is_said_not_to_be_corrected(languages, tmp_path):
    assert "interval (not corrected)" in table(languages, "comparisons")
    assert "intervals, which are not corrected" in " ".join(
        table(languages, "answers").attrs["notes"]
    )
    row = row_of(UNCLEAR, difference=0.1, low=0.01, high=0.19, p_holm=0.08)
    text = answer(row, pd.DataFrame([row]), 2.0)
    assert text.endswith(
        "is +10.0 points [+1.0, +19.0]; corrected p = 0.080, the interval is not corrected."
    )


def row_of(verdict, **changes):
    row = {
        "first": "swap",
        "second": "soup",
        "task": "mgsm_sw",
        "language": "sw",
        "family": "primary",
        "rival": "soup",
        "verdict": verdict,
        "clusters": 0,
        "difference": -0.111,
        "low": -0.23,
        "high": 0.152,
        "p": 0.04,
        "p_holm": 0.0004,
        **changes,
    }
    if verdict in (ONE_MODEL, NO_RESULT):
        row |= dict.fromkeys(("low", "high", "p", "p_holm"), float("nan"))
    return row


@pytest.mark.parametrize("verdict", VERDICTS)
def test_no_difference_is_claimed_only_inside_the_margin(verdict):
    row = row_of(verdict)
    text = answer(row, pd.DataFrame([row]), 2.0)
    assert ("no relevant difference" in text) == (verdict == SAME)
    assert ("±2" in text) == (verdict == SAME)
    assert ("23.0 points are possible" in text) == (verdict == UNCLEAR)
    assert ("p <0.001" in text) == (verdict in (BETTER, WORSE))
    assert not re.search(r"\b(level|equal|as good|keeps)\b", text)
    row |= dict.fromkeys(("low", "high"), float("nan"))  # no interval: too few items, all the same
    assert "nan" not in answer(row, pd.DataFrame([row]), 2.0) + verdict_text(row)


def test_both_experts_must_be_beaten():
    report = study_of().report
    for verdicts in itertools.product(VERDICTS, repeat=2):
        rows = [
            row_of(verdict, second=name, rival="better_expert")
            for name, verdict in zip(("task expert", "language expert"), verdicts, strict=True)
        ]
        text = " ".join(comparison_sentences(pd.DataFrame(rows), report))
        assert ("beats both experts" in text) == ({*verdicts} == {BETTER})
        many = pd.DataFrame([{**row, "language": f"x{at}"} for at in range(5) for row in rows])
        text = " ".join(comparison_sentences(many, report))
        assert ("against both experts: 5 better" in text) == ({*verdicts} == {BETTER})
        assert "against the task expert: 5" in " ".join(comparison_sentences(many[::2], report))
        text = " ".join(comparison_sentences(many.assign(rival="first_setting"), report))
        assert "against the first setting of its kind: " in text


def test_scores_are_means_over_pairs(languages):
    data = languages.observations
    for kind, label in (("recipe", "layer swap"), ("task_expert", "task expert")):
        own = data[(data["kind"] == kind) & (data["task"] == "mgsm_fr")]
        shown = table(languages, "scores").set_index("model")["mgsm, French, exact match"][label]
        assert shown.split()[0] == f"{100 * own['value'].mean():.1f}"
        low, high = map(float, re.findall(r"[\d.]+", shown.partition("[")[2]))
        assert low < 100 * own["value"].mean() < high


def test_the_layouts_of_the_paper_have_its_numbers_after_them(languages):
    keys = [each.attrs["key"] for each in languages.tables]
    for key in ("pairs", "overview"):
        assert keys.index(f"published-{key}") == keys.index(key) + 1
        published = table(languages, f"published-{key}")
        rows = published_tables()["tables"][key]["rows"]
        assert list(published.iloc[:, 0]) == [row["name"] for row in rows]
    overview = table(languages, "overview").set_index("over pairs")
    assert {"layer swap", "soup", "weighted soup"} <= set(overview.columns)
    swap = overview["layer swap"]
    ends = [float(swap[f"mgsm, French, exact match {end}"]) for end in ("min", "avg", "max")]
    assert ends == sorted(ends)
    means = [float(swap[name]) for name in overview.index if name.endswith(" avg")]
    whole = float(swap["all 5 exact_match tasks avg"])
    assert min(means) <= whole <= max(means)
    assert float(table(languages, "pairs").set_index("over pairs")["soup"].iloc[0]) > 0


def test_the_mean_over_tasks_needs_every_task_of_every_language():
    tasks = ["mgsm_en", "mgsm_sw", "mgsm_te", "mgsm_en"]
    places = {"task": tasks, "language": ["sw", "sw", "te", "te"], "cells": [1, 1, 1, 0]}
    same = {"model": "soup", "metric": "acc", "is_share": True, "value": 0.5, "max": 0.5}
    for rows, notes in ((4, 2), (1, 1)):
        frame = pd.DataFrame(places).assign(cells_expected=1, **same)[:rows]
        tasks = ShownTasks(frame, {}, (), {}, {}, {task: task[-2:] for task in frame["task"]})
        shown, _ = layout_tables(frame, ["pairs"], tasks)
        assert (shown.attrs["title"], len(shown.attrs["notes"])) == ("Layout of Table 1", notes)
        assert (shown["soup"].iloc[-1] == GAP) == (rows == 4)


def test_facts_of_the_experts_are_an_axis(tmp_path):
    vary = [{"experts.task": ["math_1"]}, {"experts.task": ["math_2"]}]
    experts = {"language": ["swahili"], "facts": {"math_1": {"norm": 0.1}, "math_2": {"norm": 0.3}}}
    study = study_of(vary=vary, experts=experts, report={"facts": ["experts.task.norm"]})
    figures = make_report(write_run(tmp_path, study, lambda *_: 99.0, items=30)).figures
    assert [figure.title for figure in figures][1:] == ["Score over task expert: norm"]


def test_the_layout_of_table_6_is_tasks_by_merges(tmp_path):
    tasks = ("pocket_math_sw", "math_sw", "perplexity_sw")
    report_block = {"tables": ["souping"]}
    study = study_of(baseline=BASELINES, report=report_block, evaluate={"tasks": tasks})
    report = make_report(write_run(tmp_path, study, level, items=9), draw=False)
    means = report.scores.drop_duplicates(["model", "task"]).set_index(["task", "model"])["value"]
    shown = table(report, "souping").set_index("task")
    assert list(shown.columns) == ["soup", "layer swap"]
    expected = 100 * means["pocket_math_sw", "soup"]
    assert float(shown["soup"].iloc[0]) == pytest.approx(expected, abs=0.05)
    assert [name.partition(",")[0] for name in shown.index[:2]] == [*tasks[:2]]
    assert shown["soup"].iloc[2] == "3.000"


def test_what_failed_or_is_missing_is_said_and_shown(nine_pairs):
    report = make_report(nine_pairs, draw=False)
    failed, preliminary = report.problems
    assert "engine died" in failed
    assert preliminary == "Preliminary: 3 of 166 results (a task of a cell) are missing."
    cells = table(report, "cells")
    assert (cells["state"].str.startswith("failed: engine died")).sum() == 1
    assert "(8 of 9 cells)" in " ".join(table(report, "scores").to_numpy().ravel())


def test_an_unfinished_run_has_a_report_once_one_cell_is_finished(tmp_path):
    study = study_of(baseline=BASELINES, report={"facts": ["experts.task.norm"]})
    labels = ["task expert", "language expert", "soup", "layer swap"]
    report = make_report(write_run(tmp_path / "a", study, level, items=10, unrun=labels))
    assert any("was trained once" in sentence for sentence in report.sentences)
    assert list(report.comparisons["verdict"]) == ["no result"] * 3
    assert report.figures == []
    run = write_run(tmp_path / "b", study, level, items=10, unrun=[*labels, "base"])
    unrun = [cell.label for cell in run.head.cells]
    with pytest.raises(InputError, match="none of its 5 cells is finished"):
        make_report(write_run(tmp_path / "c", study, level, items=10, unrun=unrun))


@pytest.mark.parametrize("task", ["perplexity_sw", "errors_sw"])
def test_a_task_without_values_of_items_has_scores_and_no_comparison(task, tmp_path):
    experts = {"task": ["m_1", "m_2"], "language": ["swahili"]}
    study = study_of(baseline=["soup"], experts=experts, evaluate={"tasks": [task]})
    run = write_run(tmp_path, study, lambda cell, _: float(cell.experts["task"] == "m_2"), items=10)
    report = make_report(run, draw=False)
    mean = np.mean([cell.scores[0].value for cell in run.cells if cell.kind == "soup"])
    assert table(report, "scores").iloc[0, 1] == f"{mean:.3f}"
    assert not table(report, "cells")["score"].str.contains("[", regex=False).any()
    assert report.comparisons["verdict"].tolist() == ["no result"]
    assert report.observations.empty


def test_the_experts_of_a_study_without_a_merge_are_compared_with_the_base(tmp_path):
    study = study_of(
        recipe=None,
        experts={"task": ["fusion_1", "fusion_2", "prefix_1"]},
        baseline=["base", "task_expert"],
    )
    report = make_report(write_run(tmp_path, study, level, items=40), draw=False)
    firsts = report.comparisons[report.comparisons["family"] == "primary"]["first"]
    assert list(firsts) == ["task expert fusion_1-2", "task expert prefix_1"]
    assert set(report.observations["cell"]) == {
        "base",
        "task expert fusion_1",
        "task expert fusion_2",
        "task expert prefix_1",
    }
    assert not any("was trained once" in sentence for sentence in report.sentences)


@pytest.mark.slow
def test_figures_are_drawn_from_the_frames(languages, tmp_path):
    assert [figure.key for figure in languages.figures] == ["default"]
    vary = {"bottom_layers": [0, 1, 2], "top_layers": [0, 1, 2]}
    run = write_run(tmp_path / "map", study_of(vary=vary, baseline=["soup"]), level, items=20)
    figures = make_report(run).figures
    assert figures[0].key == "map"
    vary = {**vary, "layer_norms": ["block", "average"]}  # two models at every place
    several = write_run(tmp_path / "several", study_of(vary=vary), level, items=9)
    assert not any(figure.key == "map" for figure in make_report(several).figures)
    for figure in figures:
        assert set(figure.images) == {"svg", "png", "pdf"}
        assert figure.images["png"].startswith(b"\x89PNG")
    assert make_report(run).figures == figures  # the same bytes


def test_what_has_a_meaning_in_a_format_is_escaped(tmp_path):
    study = study_of(baseline=["soup"], question="Is <b>a</b> & 5 % of $x_1$ | y?")
    odd = make_report(write_run(tmp_path / "odd", study, level, items=20))
    page = render_html(odd)
    assert "&lt;b&gt;a&lt;/b&gt; &amp; 5 %" in page
    assert "<b>a" not in page
    assert r"# Is \<b>a\</b> \& 5 % of $x\_1$ \| y?" in render_markdown(odd)
    text = render_latex(odd)
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == len(odd.tables)
    for line in text.splitlines():
        if line.rstrip().endswith(r"\\") and "&" in line:
            assert not re.search(r"(?<!\\)[_%#]", line), line


def test_a_name_is_no_formula_of_a_spreadsheet(languages, tmp_path):
    scores = languages.scores.assign(model="=1+1")
    write_report(languages._replace(scores=scores), ["csv"], tmp_path)
    assert set(pd.read_csv(tmp_path / "scores.csv")["model"]) == {"'=1+1"}


def test_the_frames_can_be_opened_and_give_the_report_again(languages, tmp_path):
    write_report(languages, ["csv"], tmp_path)
    data = pd.read_parquet(tmp_path / "observations.parquet")
    assert list(data.columns) == list(OBSERVATIONS)
    pd.testing.assert_frame_equal(data, languages.observations)
    frame = pd.read_parquet(tmp_path / "comparisons.parquet")
    pd.testing.assert_frame_equal(frame, languages.comparisons)
    scores = pd.read_csv(tmp_path / "scores.csv")
    named = set(frame["first"]) - {"layer swap, mean"}
    assert named <= set(scores["model"])  # the files can be joined


def test_a_report_replaces_its_own_files_and_no_other(one_pair, tmp_path):
    report = make_report(one_pair)
    write_report(report, FORMATS, tmp_path)
    assert (tmp_path / "figures" / "default.svg").is_file()
    (tmp_path / "mine.txt").write_text("x")
    (tmp_path / "scores.csv").write_text("old")
    before = {path.name for path in tmp_path.iterdir()}
    write_report(report, ["csv"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert (tmp_path / "scores.csv").read_text() != "old"
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(LayerSwapError, match="blocked"):
        write_report(report, ["md"], tmp_path / "blocked")
    for formats in ([], ["htm"]):
        with pytest.raises(InputError, match="html"):
            write_report(report, formats, tmp_path)


def test_a_report_does_not_replace_a_file_of_the_user(one_pair, tmp_path):
    report = make_report(one_pair, draw=False)
    for name in ("scores.csv", "report.md"):
        out = tmp_path / name.partition(".")[0]
        out.mkdir()
        (out / name).write_text("mine")
        with pytest.raises(InputError, match=f"{name}: exists, and layerswap did not write it"):
            write_report(report, FORMATS, out)
        assert [path.name for path in out.iterdir()] == [name]


def test_a_report_is_not_written_through_a_link_in_a_run(one_pair, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run = shutil.copytree(one_pair.path, tmp_path / "run")
    shutil.rmtree(run / "report", ignore_errors=True)
    (tmp_path / "link").symlink_to(run)
    (run / "report").symlink_to(tmp_path / "elsewhere")
    code, output = told("report", tmp_path / "link")
    assert (code, "report: is a link" in output) == (2, True)
    assert told("report", run, "--out", tmp_path / "elsewhere")[0] == 0  # a folder that is named
    shutil.rmtree(run / "report", ignore_errors=True)
    (run / "report").unlink()
    assert told("report", tmp_path / "link", "--format", "md")[0] == 0
    shutil.rmtree(run / "report" / "figures")
    (run / "report" / "figures").symlink_to(tmp_path / "elsewhere")
    code, output = told("report", run, "--format", "md")
    assert (code, "figures: is a link" in output) == (2, True)


invoke = partial(told, "report")


def test_the_command_writes_every_format_and_prints_the_answer(one_pair):
    code, output = invoke(one_pair.path)
    files, _, answer_lines = output.partition("\n\n")
    assert {Path(line).name for line in files.splitlines()} == {
        "report.html",
        "report.md",
        "tables.tex",
        "scores.csv",
        "comparisons.csv",
        "observations.parquet",
        "comparisons.parquet",
    }
    assert (code, answer_lines.startswith(one_pair.study.question)) == (0, True)


def test_bad_input_is_one_sentence(one_pair, tmp_path):
    (tmp_path / "run.json").write_text("{")
    nowhere, file = tmp_path / "nowhere", Path(__file__)
    cases = [([tmp_path], "run.json"), ([nowhere], "nowhere"), ([file], file.name)]
    for words, why in [*cases, ([one_pair.path, "--format", "pdf"], "pdf")]:
        code, output = invoke(*words)
        assert (code, output.count("\n")) == (2, 1), output
        assert why in output


def test_damaged_samples_are_named(tmp_path):
    run = write_run(tmp_path, study_of(baseline=["soup"]), level, items=5)
    (file, *_) = sorted(tmp_path.glob("records/*.jsonl"))
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for content in ("".join(lines[:3]), "".join([*lines[:2], "{"])):
        file.write_text(content, encoding="utf-8")
        code, output = invoke(run.path)
        assert (code, len(re.findall(rf"{file.name}(?::3)? is damaged", output))) == (2, 1)


def test_names_of_tasks_and_models(nine_pairs, tmp_path):
    assert task_name("layerswap_mgsm_sw") == "MGSM, Swahili"
    assert task_name("layerswap_mgsm_rev2_sw") == "MGSM-Rev2, Swahili"
    assert task_name("layerswap_global_mgsm_wo") == "Global-MGSM, Wolof"
    assert task_name("layerswap_polymath_top_it") == "PolyMath-top, Italian"
    assert task_name("pocket_translate_en_sw") == "translate, English to Swahili"
    assert task_name("smol_math_es_4shot") == "math, Spanish, 4-shot"
    assert task_name("smol_math_twins_order_es") == "math minimal pairs order, Spanish"
    assert task_name("my_own_task") == "my own task"
    names = [cell.label for cell in nine_pairs.head.cells]
    assert "soup math_1+swh_1" in names
    alone = study_of(recipe=None, experts={"base": "org/a"}, baseline=["base"])
    assert write_run(tmp_path / "one", alone, level, items=2).models[0].label == "org/a"
    bases = study_of(vary=[{"experts.base": "b1"}, {"experts.base": "b2"}], baseline=["base"])
    cells = write_run(tmp_path, bases, level, items=2).head.cells
    for each in (names, [cell.label for cell in cells]):
        assert len(set(each)) == len(each)
    note = merge_note(nine_pairs.study, 8)
    assert note.startswith("b, u: layers of 8 from the language expert")
