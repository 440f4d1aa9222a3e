import json
from pathlib import Path

import pytest

from ablations.report.charts import charts
from ablations.report.comparisons import Comparer
from ablations.report.compose import compose
from ablations.report.document import Entry, Table
from ablations.report.formats.templates import render_markdown
from ablations.report.names import task_name
from ablations.report.observations import Observations
from ablations.report.published import reference_table
from ablations.report.summaries import Summaries
from ablations.report.tables import overview_table, pairs_table
from ablations.report.targets import is_english
from ablations.report.wording import measure_text, verdict
from ablations.runner.records import Run, load_run
from ablations.scoring.records import TaskScore
from ablations.statistics.as_text import points
from tests.report.conftest import REASON
from tests.report.runs import NINE_PAIRS, study_of, write_run

_COMPOSED: dict[tuple[int, bool], tuple[Run, dict[str, Table]]] = {}
"""Identity of a run and choice -> the run, so that it keeps its identity, and its tables."""


def _tables(run: Run, *, published: bool = False) -> dict[str, Table]:
    if (id(run), published) not in _COMPOSED:
        report, _ = compose(run, published=published, draw=False)
        tables = {table.key: table for table in (*report.tables, *report.details)}
        assert len(tables) == len(report.tables) + len(report.details)
        _COMPOSED[id(run), published] = run, tables
    return _COMPOSED[id(run), published][1]


def _layout(run: Run, key: str) -> Table:
    """Return a layout as it is made: a report has it with the tasks as columns."""
    make = {"pairs": pairs_table, "overview": overview_table}[key]
    return make(Summaries(Observations(run), Comparer(seed=0, level=0.95)))


def _scores(run: Run, task: str, prefix: str, language: str) -> list[TaskScore]:
    return [
        score
        for cell in run.cells
        if cell.label.startswith(prefix) and cell.language in (language, None)
        for score in cell.scores
        if score.task == task
    ]


def _row(table: Table, *texts: str) -> dict[str, Entry]:
    (found,) = [row for row in table.rows if tuple(e.text for e in row[: len(texts)]) == texts]
    return dict(zip(table.columns, found, strict=True))


def test_table_1_has_average_and_best_over_pairs_per_language(nine_pairs: Run) -> None:
    table = _layout(nine_pairs, "pairs")
    (score,) = _scores(nine_pairs, "mgsm_sw", "base", "sw")
    assert score.interval is not None
    low, high = 100 * score.interval.low, 100 * score.interval.high
    shown = _row(table, "mgsm, Swahili, exact match", "avg")["base"].text
    assert shown == f"{100 * score.value:.1f} [{low:.1f}, {high:.1f}]"
    assert table.columns == (
        *("task", "over pairs", "base", "task expert", "language expert", "soup"),
        *("layer swap t_b=0 t_u=0", "layer swap t_b=1 t_u=1"),
    )
    for column, prefix, count in (
        ("base", "base", 1),
        ("task expert", "task_expert", 3),
        ("language expert", "language_expert", 3),
        ("soup", "soup", 9),
    ):
        values = [each.value for each in _scores(nine_pairs, "mgsm_te", prefix, "te")]
        assert len(values) == count
        average = _row(table, "mgsm, Telugu, exact match", "avg")[column]
        assert average.value == pytest.approx(sum(values) / count)
        assert average.text.startswith(f"{100 * sum(values) / count:.1f} [")
        best = _row(table, "mgsm, Telugu, exact match", "max")[column]
        assert (best.value, best.text) == (max(values), f"{100 * max(values):.1f}")


def test_gaps_are_marked_where_they_count(nine_pairs: Run) -> None:
    table = _layout(nine_pairs, "pairs")
    found = _row(table, "mgsm, Swahili, exact match", "avg")
    assert found["soup"].is_gap
    assert found["soup"].text.endswith("(8 of 9 cells)")
    assert not found["task expert"].is_gap
    assert not _row(table, "mgsm, Telugu, exact match", "avg")["soup"].is_gap


def test_table_2_has_worst_average_best_english_and_all_tasks(nine_pairs: Run) -> None:
    table = _layout(nine_pairs, "overview")
    shown = [(row[0].text, row[1].text) for row in table.rows]
    assert shown == [
        *[("mgsm, Swahili, exact match", end) for end in ("min", "avg", "max")],
        *[("translate, Swahili, BLEU", end) for end in ("min", "avg", "max")],
        ("mgsm, English (Swahili experts), exact match", "avg"),
        ("both exact match tasks (Swahili)", "avg"),
        *[("mgsm, Telugu, exact match", end) for end in ("min", "avg", "max")],
        ("mgsm, English (Telugu experts), exact match", "avg"),
        ("both exact match tasks (Telugu)", "avg"),
    ]
    worst = _row(table, "mgsm, Telugu, exact match", "min")["language expert"].value
    assert worst == min(e.value for e in _scores(nine_pairs, "mgsm_te", "language_expert", "te"))
    both = [
        _row(table, f"mgsm, {task}, exact match", "avg")["task expert"].value
        for task in ("English (Telugu experts)", "Telugu")
    ]
    together = _row(table, "both exact match tasks (Telugu)", "avg")["task expert"].value
    assert together == pytest.approx(sum(each for each in both if each is not None) / 2)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        *(("mgsm_direct_en", True), ("pocket_math_en_2shot", True), ("mgsm_en_cot_sw", False)),
        *(("mgsm_native_cot_te", False), ("gsm8k", False), ("pocket_translate_sw_en", True)),
    ],
)
def test_english_is_told_by_the_last_code_in_the_name(task: str, expected: bool) -> None:
    assert is_english(task) is expected


def test_of_many_settings_the_best_is_shown_and_called_what_it_is(grid: Run) -> None:
    table = _layout(grid, "pairs")
    assert table.columns[-2:] == ("average of 6 settings", "best of 6 settings")
    best = _row(table, "math, Swahili, exact match", "avg")["best of 6 settings"]
    scores = _scores(grid, "pocket_math_sw", "math+swahili", "")
    assert best.value == max(score.value for score in scores)
    assert best.text.endswith("(b=2 u=1)")
    assert any("chosen anew for every row, on the same items" in note for note in table.notes)


def test_the_best_of_all_tasks_is_the_best_of_all_tasks(tmp_path: Path) -> None:
    """The setting that is best on the first task is the worst on both together."""
    signs = {"pocket_math_sw": 0.3, "pocket_math_en": -1.0}
    study = study_of(baseline=["soup"], vary={"bottom_layers": [0, 1, 2, 3, 4]})
    run = write_run(
        tmp_path,
        study,
        lambda point, task: signs[task] * float(point.values.get("bottom_layers", 2)),
        items=80,
    )
    table = _layout(run, "overview")
    columns = table.columns[-2:]
    assert columns == ("average of 5 settings", "best of 5 settings")
    means = {}
    for cell in run.cells[1:]:
        values = [score.value for score in cell.scores]
        means[f"b={cell.values['bottom_layers']}"] = sum(values) / len(values)
    name = max(means, key=lambda each: means[each])
    first = _row(table, "math, Swahili, exact match", "avg")["best of 5 settings"].text
    assert not first.endswith(f"({name})")
    row = _row(table, "both exact match tasks", "avg")
    average, best = (row[column] for column in columns)
    assert best.value == pytest.approx(max(means.values()))
    assert best.text == f"{100 * max(means.values()):.1f} ({name})"
    assert average.value == pytest.approx(sum(means.values()) / 5)
    assert max(means.values()) > sum(means.values()) / 5


def test_of_several_pairs_the_best_setting_is_chosen_by_what_the_row_shows(tmp_path: Path) -> None:
    study = study_of(
        experts=NINE_PAIRS,
        vary={"bottom_layers": [0, 1, 2, 3, 4]},
        evaluate={"languages": {"sw": ["mgsm_sw"], "te": ["mgsm_te"]}},
    )
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=40)
    table = _layout(run, "pairs")
    for what in ("avg", "max"):
        row = _row(table, "mgsm, Swahili, exact match", what)
        scores = [score.value for score in _scores(run, "mgsm_sw", "math", "sw")]
        by_setting = [
            [
                cell.scores[0].value
                for cell in run.cells
                if cell.language == "sw" and cell.values == {"bottom_layers": b}
            ]
            for b in range(5)
        ]
        expected = max(scores) if what == "max" else max(sum(s) / len(s) for s in by_setting)
        assert row["best of 5 settings"].value == pytest.approx(expected)


def test_the_grid_shows_b_against_u_with_gaps(grid: Run) -> None:
    table = _tables(grid)["grid-pocket-math-sw"]
    assert table.columns == ("b \\ u", "u=0", "u=1")
    assert [row[0].text for row in table.rows] == ["b=0", "b=1", "b=2"]
    assert [[e.is_gap for e in row[1:]] for row in table.rows] == [
        *([False, False], [False, True], [True, False]),
    ]


def test_a_table_per_varied_parameter_with_its_tests(grid: Run) -> None:
    tables = _tables(grid)
    table = tables["factor-bottom-layers"]
    assert table.columns[:4] == ("task", "bottom layers", "score", "difference from b=0")
    assert "factor-top-layers" in tables
    found = _row(table, "math, Swahili, exact match", "b=1")
    assert found["score"].text.endswith("(1 of 2 cells)")
    assert found["difference from b=0"].value is not None
    assert found["reading"].text
    assert "Averaged over top layers; settings that differ in them are not compared." in table.notes


def test_the_recipe_stands_against_every_baseline_with_what_is_evidence(nine_pairs: Run) -> None:
    _, comparisons = compose(nine_pairs, draw=False)
    table = _tables(nine_pairs)["baselines"]
    assert table.columns == ("task", "model", "base", "task expert", "language expert", "soup")
    against = [each for each in comparisons if not each.contrast.factor and not each.is_primary]
    assert len(against) == 5 * 2 * 4
    for each in against:
        assert each.outcome is not None
        found = _row(table, measure_text(each.measure, each.group), each.contrast.first)
        entry = found[each.contrast.second]
        assert entry.value == each.outcome.difference
        sign = "°" if verdict(each).endswith("may be better") else ""
        assert entry.text == f"{points(each.outcome.difference)} {sign}".rstrip()
    hints = sum(verdict(each).endswith("may be better") for each in against)
    assert 0 < hints < len(against)
    assert f"0 marked by * and {hints} by ° of 40 comparisons." in table.notes
    assert sum(each.is_primary for each in comparisons) == 4


def test_where_nothing_varies_the_answers_are_about_the_baselines(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(baseline=["base"]), lambda _, __: 0.0, items=30)
    report, _ = compose(run, draw=False)
    assert report.bottom_line[0].startswith("On math, Swahili, the layer swap ")
    assert " the base (" in report.bottom_line[0]
    assert "baselines" not in _tables(run)


def test_what_is_not_compared_is_counted_not_listed(tmp_path: Path) -> None:
    study = study_of(baseline=["base", "soup"], vary={"bottom_layers": [0, 1, 2]})
    gone = frozenset({"base", "soup math swahili", "math+swahili bottom_layers=1"})
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=30, unrun=gone)
    report, comparisons = compose(run, draw=False)
    assert len(comparisons) == 1 + 2 * (2 + 3 * 2)
    assert report.bottom_line[0].startswith("Preliminary: 3 of 5 cells have no result yet. ")
    assert "could not be made: cells are missing or their items" in report.bottom_line[0]
    tables = _tables(run)
    assert "baselines" not in tables
    assert len(tables["comparisons"].rows) == 2
    assert any(
        note.startswith("15 of 17 comparisons could not be made: ")
        for note in tables["comparisons"].notes
    )
    text = render_markdown(report)
    assert text.count("not compared") == 2  # a level of the factor, by two tasks


def test_cells_and_gaps_are_complete(grid: Run) -> None:
    report, _ = compose(grid, draw=False)
    gaps, _, cells = report.details
    assert [row[0].text for row in cells.rows] == [
        *("base", "task expert math", "layer swap b=0 u=0", "layer swap b=0 u=1"),
        *("layer swap b=1 u=0", "layer swap b=2 u=1"),
    ]
    assert [tuple(entry.text for entry in row) for row in gaps.rows] == [
        ("layer swap b=1 u=1", "failed 2×", REASON),
        ("layer swap b=2 u=0", "not run", ""),
    ]
    assert ("cells", "6 of 8 finished") in report.facts


def test_a_run_that_was_done_again_is_dated_by_its_records(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(vary={"bottom_layers": [0, 1]}), lambda _, __: 0.0, items=9)
    assert run.head.created == "2026-11-01T12:00:00+00:00"  # of the first call
    for day, path in enumerate(sorted(run.path.glob("records/*/record.json")), start=2):
        record = json.loads(path.read_text(encoding="utf-8"))
        record["provenance"]["finished"] = f"2026-12-0{day}T12:00:00+00:00"
        path.write_text(json.dumps(record), encoding="utf-8")
    report, _ = compose(load_run(run.path), draw=False)
    times = dict(report.facts)["evaluated"]
    assert times.startswith("2026-12-02 12:00 UTC to 2026-12-0")
    assert "2026-11-01" not in str(report.facts)


def test_souped_recipes_get_the_layout_of_table_6(grid: Run, tmp_path: Path) -> None:
    assert "souping" not in _tables(grid)
    study = study_of(baseline=["soup"])
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=30)
    for path in run.path.glob("records/*/merge.yml"):
        more = "- {model: experts/other, parameters: {role: language}}\n"
        path.write_text(path.read_text() + more * 2)
    table = _tables(load_run(run.path))["souping"]
    assert table.columns == (
        *("task", "soup, pairwise", "swap, task expert × soup of 3 language experts"),
    )
    assert all(entry.value is not None for row in table.rows for entry in row[1:])


def test_tasks_have_one_order_everywhere(tmp_path: Path) -> None:
    """The primary task first and English last, or as the study says."""
    english, swahili, story = "pocket_math_en", "pocket_math_sw", "story_sw"
    names = ["math, Swahili", "story, Swahili", "math, English"]
    for asked, expected in (
        ([], names),
        ([story, english, swahili], [names[1], names[2], names[0]]),
    ):
        study = study_of(
            baseline=["soup"],
            vary={"bottom_layers": [0, 1, 2]},
            evaluate={"tasks": [english, swahili, story]},
            report={"tasks": asked},
        )
        run = write_run(tmp_path / str(len(asked)), study, lambda _, __: 0.0, items=20)
        report, comparisons = compose(run, draw=False)
        (scores,) = report.lead
        by_level = next(table for table in report.tables if table.title == "By bottom layers")
        cells = next(table for table in report.details if table.key == "cells")
        (chart,) = charts(Summaries(Observations(run), Comparer(seed=0, level=0.95)))
        assert list(scores.columns[1:]) == expected
        assert list(cells.columns[3:]) == expected
        assert [panel.title for panel in chart.panels] == expected
        told = (row[0].text.removesuffix(", exact match") for row in by_level.rows)
        assert list(dict.fromkeys(told)) == expected
        others = (each.measure for each in comparisons if not each.is_primary)
        assert [task_name(m.task) for m in dict.fromkeys(others)] == expected


def test_the_study_chooses_layouts_tasks_and_metric(tmp_path: Path) -> None:
    report = {"tables": ["pairs"], "tasks": ["pocket_math_en"], "metric": "exact_match"}
    experts = {"task": ["math", "math_2"], "language": ["swahili"]}
    given = {"baseline": ["base"], "vary": {"seed": [0, 1]}, "experts": experts, "report": report}
    tables = _tables(write_run(tmp_path, study_of(**given), lambda _, __: 0.0, items=30))
    assert set(tables) == {"pairs", "baselines", "comparisons", "cells"}
    assert tables["pairs"].columns == (
        *("model", "math, English, exact match, avg", "math, English, exact match, max"),
    )
    assert [row[0].text for row in tables["pairs"].rows] == [
        *("base", "layer swap seed=0", "layer swap seed=1"),
    ]


def test_published_values_stand_apart_and_only_when_asked(nine_pairs: Run) -> None:
    plain, shown = _tables(nine_pairs), _tables(nine_pairs, published=True)
    added = {key: table for key, table in shown.items() if key not in plain}
    assert set(added) == {"published-pairs", "published-overview"}
    assert all(table.is_reference for table in added.values())
    assert all("Reference only, not this run" in table.notes[0] for table in added.values())
    assert {key: shown[key] for key in plain} == plain
    assert list(shown).index("published-pairs") == list(shown).index("pairs") + 1


def test_published_values_are_the_papers() -> None:
    pairs, overview, souping = map(reference_table, ("pairs", "overview", "souping"))
    assert pairs is not None
    assert overview is not None
    assert souping is not None
    # arXiv 2410.01335: Table 1 Swahili avg and Telugu max, Table 2 English, Table 6 Bengali.
    for table, name, values in (
        (pairs, "Swahili avg", [24.8, 24.7, 29.5, 29.3, 32.4, 32.8]),
        (pairs, "Telugu max", [12.0, 22.4, 24.0, 26.4, 27.6, 27.6]),
        (overview, "English avg", [56.0, 55.7, 66.2, 64.3, 62.0, 60.1, 64.7, 64.4]),
        (souping, "Bengali", [36.8, 37.1, 40.4, 36.0]),
    ):
        (row,) = [row for row in table.rows if row[0].text == name]
        assert [entry.value for entry in row[1:]] == values
    assert reference_table("cells") is None


def test_what_is_no_share_is_shown_as_it_is(tmp_path: Path) -> None:
    study = study_of(vary={"seed": [0, 1]}, evaluate={"tasks": ["perplexity_sw"]})
    run = write_run(tmp_path, study, lambda _, __: 0.0, items=10)
    row = _row(_layout(run, "pairs"), "perplexity, Swahili, word perplexity", "avg")
    assert row["layer swap seed=0"].text == "3.000"
