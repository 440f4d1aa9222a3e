"""Grids of parameters: which studies are one, and which models cannot be told from the best."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, norm

from ablations.report.comparisons import UNCLEAR
from ablations.report.grids import ParameterGrid, differences_to_best, find_grid
from ablations.report.shown_tasks import ShownTasks
from ablations.report.tables import MARKS
from ablations.report.write import answer_text, make_report
from ablations.runs.observations import CELL, CELL_ROLES
from ablations.runs.results import Results
from tests.report.runs import level, study_of, write_run

DIAGONAL = [{"bottom_layers": n, "top_layers": n} for n in (0, 1, 2)]
TWICE = [
    {"bottom_transition": n, "top_transition": n, "weighting": w} for n in (0, 1) for w in "ab"
]


def grid_of(tmp_path, **changes):
    run = write_run(tmp_path, study_of(**changes), level, items=3)
    return find_grid(run.study, run.models)


def axes_of(grid):
    return [] if grid is None else [(axis.title, axis.ticks) for axis in grid.axes]


@pytest.mark.parametrize(
    ("vary", "axes"),
    [
        (
            {"bottom_layers": [2, 0, 1], "top_layers": [0, 1]},
            [("bottom layers (b)", ("0", "1", "2")), ("top layers (u)", ("0", "1"))],
        ),
        (DIAGONAL, [("bottom layers (b), top layers (u)", ("0", "1", "2"))]),
        ({"bottom_layers": [3, 0, 1]}, [("bottom layers (b)", ("0", "1", "3"))]),
        ({"bottom_layers": [0, 1]}, []),  # two models are no curve
        ({"layer_norms": ["block", "average"]}, []),  # and names none
        (
            {"layer_norms": ["block", "average"], "bottom_layers": [0, 1]},
            [("layer norms", ("block", "average")), ("bottom layers (b)", ("0", "1"))],
        ),
        (
            [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (1, 2), (2, 1), (2, 3))],
            [],  # 4 of 12 combinations
        ),
        (
            [{"bottom_layers": 1}, {"bottom_layers": 2}, {"bottom_layers": 2, "non_layer": "base"}],
            [("bottom layers (b)", ("1", "2")), ("non layer", ("not set", "base"))],
        ),
        ({"bottom_layers": [0, 1], "top_layers": [0, 1], "bottom_transition": [0, 1]}, 3),
    ],
    ids=["two", "tied", "one", "few", "names", "mixed", "scattered", "not set", "three"],
)
def test_a_study_is_a_grid_of_what_varies(vary, axes, tmp_path):
    found = axes_of(grid_of(tmp_path, vary=vary))
    assert (found if isinstance(axes, list) else len(found)) == axes


def test_parameters_have_plain_names(tmp_path):
    vary = {"models.0.parameters.weight": [0.1, 0.5, 1.0]}
    recipe = {
        "merge_method": "task_arithmetic",
        "models": [{"model": role, "parameters": {"weight": 1.0}} for role in ("task", "language")],
        "base_model": "base",
    }
    assert axes_of(grid_of(tmp_path, vary=vary, recipe=recipe)) == [
        ("weight of task", ("0.1", "0.5", "1.0"))
    ]


def test_settings_with_the_same_weights_are_at_every_place_of_theirs(tmp_path):
    vary = [{"bottom_layers": b, "top_layers": u} for b in (0, 1, 2) for u in (0, 4)]
    grid = grid_of(tmp_path, vary=vary, reference_layers=32)  # of 8 layers 1 of 32 is none
    assert axes_of(grid) == [
        ("bottom layers (b)", ("0", "1")),
        ("top layers (u)", ("0", "1")),
    ]
    assert len(grid.places) == 4


def test_what_cannot_be_told_from_the_best_is_said_by_mcnemar_over_all_pairs(nine_settings):
    report = make_report(nine_settings, draw=False)
    (frame,) = (each for each in report.tables if each.attrs["key"] == "to-best")
    shown = frame.set_index("model")
    data = report.observations[report.observations["kind"] == "recipe"]
    for task, column in zip(("pocket_math_sw", "pocket_math_en"), shown.columns, strict=True):
        values = data[data["task"] == task].pivot(index="item", columns="model", values="value")
        best = values.mean().idxmax()
        others = [name for name in values if name != best]
        counts = [
            (int((values[best] > values[name]).sum()), int((values[best] < values[name]).sum()))
            for name in others
        ]
        raw = [binomtest(more, more + less).pvalue for more, less in counts]
        assert shown[column][best] == "best"
        for name, (more, less), p in zip(others, counts, raw, strict=True):
            mark = MARKS["worse" if 36 * p < 0.05 else "cannot tell"]
            text = shown[column][name]
            assert text.startswith(
                f"{100 * (less - more) / len(values):+.1f} [".replace("-0.0", "+0.0")
            )
            assert text.endswith(f"] {mark}")
    swahili, english = (shown[column].str[-1] for column in shown.columns)
    assert {*swahili[shown.index.str.contains("b=0")]} == {"▼"}
    assert {*swahili[shown.index.str.contains("b=[12]")]} <= {"?", "t"}
    assert {*english} <= {"?", "t"}


def test_the_answer_names_the_best_and_how_many_may_be(nine_settings):
    text = " ".join(answer_text(make_report(nine_settings, draw=False)).split())
    assert "On math, Swahili, layer swap b=" in text
    assert "5 of the other 8 settings cannot be told from it." in text
    assert text.index("On math, Swahili, layer swap b=") < text.index(
        "By default, against the soup:"
    )
    assert "none of" not in text  # b=0 is worse than the soup


@pytest.mark.parametrize("number", [1, 2])
def test_a_grid_says_whether_any_setting_can_be_told_from_the_soup(number, tmp_path):
    tasks = ["pocket_math_sw", "pocket_math_en"]
    study = study_of(
        vary={"bottom_layers": [0, 1, 2], "top_layers": [0, 1]},
        baseline=["soup", "task_expert", "language_expert"],
        evaluate={"tasks": tasks},
        report={"primary": {"against": ["soup", "better_expert"], "tasks": tasks[:number]}},
    )
    run = write_run(tmp_path / "run", study, lambda *_: 0.0, items=30)
    report = make_report(run, draw=False)
    primary = report.comparisons[report.comparisons["family"] == "primary"]
    assert {*primary["verdict"]} == {UNCLEAR}
    rivals = primary["rival"].value_counts()
    text = " ".join(answer_text(report).split())
    noun = "settings" if number == 1 else "comparisons"
    assert f"Planned, against the soup: none of {rivals['soup']} {noun} can be told from it" in text
    assert f"against both experts: {rivals['better_expert'] // 2} unclear" in text


@pytest.mark.parametrize(
    ("vary", "star"),
    [({"bottom_layers": [0, 1, 2], "top_layers": [0, 1]}, "★"), ({"bottom_layers": [0, 1, 2]}, "")],
)
def test_settings_that_tie_are_all_marked_and_none_where_all_tie(vary, star, tmp_path):
    def report_of(folder, ability):
        tasks = {"tasks": ["pocket_math_sw"]}
        study = study_of(vary=vary, evaluate=tasks, baseline=["base"])
        report = make_report(write_run(tmp_path / folder, study, ability, items=30))
        figure = next(each for each in report.figures if each.key in ("map", "curve"))
        (table,) = (each for each in report.tables if each.attrs["key"] == "to-best")
        return " ".join(answer_text(report).split()), figure, table

    def of_two(cell, task):
        return 50.0 if cell.values.get("bottom_layers") in (1, 2) else -50.0

    text, figure, table = report_of("two", of_two)
    count = 4 if star else 2
    winners = "4 settings" if star else "layer swap b=1 u=1 and layer swap b=2 u=1"
    worse = "All of the other 2 settings are" if star else "The other setting is"
    assert f"{winners} score best (100.0). {worse} worse." in text
    if star:
        assert figure.images["svg"].decode().count(f"<!-- {star} -->") == count
    assert "the best score" in figure.caption
    shown = table.set_index("model").iloc[:, 0]
    assert {*shown[shown.index.str.contains("b=[12]")]} == {"best, tied"}
    assert {*shown[shown.index.str.contains("b=0")].str[-1]} == {"▼"}
    assert table.attrs["notes"][1:] == (
        "best, tied: several have the best score; intervals are to the first of them.",
    )
    text, figure, table = report_of("all", lambda *_: -50.0)
    assert {*table.iloc[:, 1]} == {"same"}
    assert table.attrs["notes"][1:] == ("same: all models have the same score.",)
    assert f"all {6 if star else 3} settings score the same (0.0)." in text
    assert "score the same (0.0)." in figure.alt
    assert "★" not in figure.caption + figure.images["svg"].decode()
    assert "the best score" not in figure.caption


def test_equal_scores_tie_though_their_means_differ_in_the_last_digit(tmp_path):
    """The mean of six pairs of experts, of which any three have all 7 items right, is about 0.5."""
    right = {0: (0, 1, 2), 1: (0, 1, 5), 2: ()}
    pairs = [f"math_{number}" for number in range(6)]
    study = study_of(
        vary={"bottom_layers": [*right], "top_layers": [0, 1]},
        experts={"task": pairs, "language": ["swahili"]},
        evaluate={"tasks": ["pocket_math_sw"]},
        baseline=["base"],
    )

    def ability(cell, task):
        pair = cell.experts.get("task", pairs[0])
        return 50.0 if pairs.index(pair) in right[cell.values.get("bottom_layers", 2)] else -50.0

    report = make_report(write_run(tmp_path, study, ability, items=7), draw=False)
    (table,) = (each for each in report.tables if each.attrs["key"] == "to-best")
    shown = table.set_index("model").iloc[:, 0]
    assert {*shown[shown.index.str.contains("b=[01]")]} == {"best, tied"}


def _differences(answers):
    """Return `differences_to_best` of studies: right answers, shape [studies, settings, items]."""
    studies, settings, _ = answers.shape
    study = study_of(vary={"bottom_layers": [*range(settings)]})
    labels = [f"b={number}" for number in range(settings)]
    cells = pd.MultiIndex.from_tuples(
        [(label, "", "", "", "", label) for label in labels],
        names=[*CELL, "language", "weights"],
    )
    tasks = [f"task {number}" for number in range(studies)]
    matrices = {
        task: pd.DataFrame(values.astype(float), index=cells)
        for task, values in zip(tasks, answers, strict=True)
    }
    scores = pd.DataFrame(
        {
            "model": labels * studies,
            "task": np.repeat(tasks, settings),
            "language": "",
            "value": answers.mean(axis=2).ravel(),
            "higher_is_better": True,
            **dict.fromkeys(CELL_ROLES, ""),
        }
    )
    shown = ShownTasks(scores, matrices, (), {}, {}, {})
    grid = ParameterGrid((), {(number,): label for number, label in enumerate(labels)})
    return differences_to_best(Results(study, (), pd.DataFrame(), scores, {}), shown, scores, grid)


@pytest.mark.parametrize("settings", [2, 5, 10, 45])
def test_equal_settings_are_called_worse_in_at_most_one_of_twenty_studies(settings):
    """The best is chosen by its score: corrected for its rivals only, 45 are in 36 % of studies."""
    scores = np.random.default_rng(settings).normal(size=(20_000, settings))
    p = 2 * norm.sf((scores.max(axis=1) - scores.min(axis=1)) / np.sqrt(2))
    shares = [(p * tests < 0.05).mean() for tests in (math.comb(settings, 2), settings - 1)]
    assert 0.025 < shares[0] < 0.053
    assert settings < 10 or shares[1] > 0.12


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "studies"), [(2, 100), (5, 40), (10, 60), (45, 6)])
def test_equal_settings_of_studies_are_hardly_called_worse(settings, studies):
    rng = np.random.default_rng(settings)
    ease = rng.normal(0, 1.5, (studies, 1, 200))
    best = _differences(ease + rng.normal(0, 0.7, (studies, settings, 200)) > 0)
    worse = ~best["is_open"] & ~best["is_best"]
    assert worse.groupby(best["task"]).any().mean() <= 0.05


@pytest.mark.slow
def test_the_truly_best_is_open_though_the_best_is_chosen_by_its_score():
    rng = np.random.default_rng(0)
    ease = rng.normal(0, 1.5, (40, 1, 200))
    gain = -0.15 * np.arange(10)[None, :, None]
    best = _differences(gain + ease + rng.normal(0, 0.7, (40, 10, 200)) > 0)
    is_open = best.groupby("model")["is_open"].mean()
    assert is_open["b=0"] >= 0.95
    assert is_open["b=9"] < 0.1


@pytest.mark.slow
def test_of_equal_models_hardly_any_is_told_from_the_best(tmp_path):
    vary = {"bottom_layers": [0, 1, 2], "top_layers": [0, 1, 2]}
    tasks = [f"pocket_math_{number}" for number in range(20)]
    study = study_of(vary=vary, evaluate={"tasks": tasks})
    report = make_report(write_run(tmp_path, study, lambda *_: 0.3, items=100), draw=False)
    (frame,) = (each for each in report.tables if each.attrs["key"] == "to-best")
    assert frame.shape == (9, 21)
    assert np.mean([frame[task].str.contains("▼").mean() for task in frame.columns[1:]]) < 0.05
