"""Reports on settings that choose experts: baselines of the same experts, facts as an axis."""

import math
from pathlib import Path

import pytest

from ablations.drawing.charts import Chart, draw_chart
from ablations.report.baselines import baselines
from ablations.report.charts import charts
from ablations.report.comparisons import Comparer, compare_all
from ablations.report.compose import compose
from ablations.report.design import recipe_models
from ablations.report.document import Table
from ablations.report.factors import factors, over_fact
from ablations.report.forests import forest
from ablations.report.observations import Observations
from ablations.report.summaries import Summaries
from ablations.report.writer import build
from ablations.runner.records import Run
from ablations.study.schema import Study
from tests.report.runs import Point, study_of, write_run

DIVERGENCE = {"near": 0.001, "far_1": 0.1, "far_2": 0.1, "middle": 0.01}
FACT = "experts.task.divergence"


def study(**changes: object) -> Study:
    facts = {name: {"divergence": value} for name, value in DIVERGENCE.items()}
    given = {
        "experts": {"language": ["swahili"], "facts": facts},
        "baseline": ["base", "task_expert"],
        "vary": {"experts.task": ["near", "far_1", "middle"]},
        "report": {"facts": [FACT]},
    }
    return study_of(**{**given, **changes})


def ability(point: Point, task: str) -> float:
    """The farther the task expert, the worse; merged a bit better, and the base worst."""
    if point.kind == "base":
        return -2.0
    return -0.5 * math.log10(DIVERGENCE[point.experts["task"]]) - 1 + (point.kind == "recipe")


def drawn(run: Run) -> dict[str, Chart]:
    summaries = Summaries(Observations(run), Comparer(seed=0, level=0.95))
    return {chart.key: chart for chart in charts(summaries)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("experts"), study(), ability, items=60)


def test_each_expert_has_its_baseline_and_the_base_is_one() -> None:
    found = study()
    assert [m.label for m in baselines(found)] == [
        *("base", "task expert near", "task expert far_1", "task expert middle")
    ]
    assert [m.label for m in recipe_models(found)] == [
        *("layer swap task=near", "layer swap task=far_1", "layer swap task=middle")
    ]
    (factor,) = factors(found)
    assert (factor.label, [level.label for level in factor.levels]) == (
        "task expert",
        ["task=near", "task=far_1", "task=middle"],
    )


def test_a_recipe_is_compared_with_the_baseline_of_its_own_experts(run: Run) -> None:
    found = compare_all(Observations(run), Comparer(seed=0, level=0.95))
    task = {
        each.contrast.first: each.outcome
        for each in found
        if each.contrast.second == "task expert"
        and each.measure.task == "pocket_math_sw"
        and not each.is_primary
    }
    assert list(task) == [f"layer swap task={name}" for name in ("near", "far_1", "middle")]
    scores = {(cell.kind, cell.experts.get("task")): cell.scores[0].value for cell in run.cells}
    for label, outcome in task.items():
        name = label.partition("=")[2]
        assert outcome is not None
        expected = scores["recipe", name] - scores["task_expert", name]
        assert outcome.difference == pytest.approx(expected)
        assert outcome.cells == 1


def test_scores_are_drawn_over_the_fact_with_the_baseline_beside(run: Run) -> None:
    chart = drawn(run)["score-experts-task-divergence"]
    assert chart.x_label == "divergence of the task expert"
    merged, expert = chart.panels[0].series
    assert (merged.name, expert.name) == ("layer swap", "task expert")
    assert [point.x for point in merged.points] == [0.001, 0.01, 0.1]
    assert [point.x for point in expert.points] == [0.001, 0.01, 0.1]
    assert [name for name, _ in chart.panels[0].references] == ["base"]
    scores = {
        (cell.kind, cell.experts.get("task")): 100 * cell.scores[0].value for cell in run.cells
    }
    names = ("near", "middle", "far_1")
    assert [p.value for p in merged.points] == [scores["recipe", name] for name in names]
    assert [p.value for p in expert.points] == [scores["task_expert", name] for name in names]
    assert draw_chart(chart).images["svg"]


def test_experts_without_facts_stand_below_each_other(tmp_path: Path) -> None:
    plain = write_run(tmp_path, study(report={}), ability, items=30)
    assert drawn(plain) == {}
    found = forest(Observations(plain))
    assert found is not None
    assert found.rows[found.baselines :] == (
        *("swap task=near", "swap task=far_1", "swap task=middle"),
    )


def test_a_figure_compares_each_expert_with_the_soup_of_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path, study(baseline=["task_expert", "soup"]), ability, items=60)
    found = forest(Observations(run))
    assert found is not None
    assert "the soup of its own experts" in found.caption
    scores = {(cell.kind, cell.experts["task"]): 100 * cell.scores[0].value for cell in run.cells}
    names = ("near", "far_1", "middle")
    assert found.rows[: found.baselines] == tuple(f"task expert {name}" for name in names)
    for name, estimate in zip(names, found.panels[0].estimates, strict=False):
        assert estimate is not None
        expected = scores["task_expert", name] - scores["soup", name]
        assert estimate.value == pytest.approx(expected)


def test_a_pool_has_the_mean_fact_and_experts_of_one_fact_are_one_level() -> None:
    pools = [{"experts.task": ("far_1", "near")}, {"experts.task": ("middle",)}]
    (factor,) = factors(study(vary=pools))
    assert [level.value for level in over_fact(study(vary=pools), factor, FACT).levels] == [
        pytest.approx(0.0505),
        0.01,
    ]
    same = study(vary={"experts.task": ["far_1", "near", "far_2"]})
    (factor,) = factors(same)
    far, near = over_fact(same, factor, FACT).levels
    assert [model.task for model in far.models] == [("far_1",), ("far_2",)]
    assert near.value == 0.001


def test_a_single_expert_is_compared_with_each_of_a_pool(tmp_path: Path) -> None:
    pools = [{"experts.task": ("far_1", "far_2")}, {"experts.task": "near"}]
    found = write_run(tmp_path, study(vary=pools), ability, items=60)
    observations = Observations(found)
    first = next(
        each
        for each in compare_all(observations, Comparer(seed=0, level=0.95))
        if each.contrast.factor
    )
    assert (first.contrast.first, first.contrast.second) == ("task=near", "task=far_1-2")
    assert first.outcome is not None
    assert (first.outcome.cells, first.outcome.task_experts) == (2, 2)
    scores = {cell.label: cell.scores[0].value for cell in found.cells if cell.kind == "recipe"}
    near, far_1, far_2 = (
        next(value for label, value in scores.items() if label.startswith(name))
        for name in ("near", "far_1", "far_2")
    )
    assert first.outcome.difference == pytest.approx(near - (far_1 + far_2) / 2)
    assert "place by place" in "".join(compose(found, draw=False)[0].notes)


def test_a_language_that_a_setting_leaves_out_is_a_gap_there(tmp_path: Path) -> None:
    codes = {"sw": ["swahili"], "te": ["telugu"]}
    two = study_of(
        experts={"task": ["near"], "language": codes},
        baseline=["base", "soup"],
        vary={"experts.language": ["swahili", "telugu"]},
        evaluate={"languages": {"sw": ["math_sw"], "te": ["math_te"]}},
    )
    run = write_run(tmp_path, two, lambda _, __: 0.0, items=30)
    report, _ = compose(run)
    (scores,) = [part for part in report.lead if part.key == "scores"]
    assert isinstance(scores, Table)
    assert scores.columns == ("model", "math, Swahili", "math, Telugu")
    rows = {row[0].text: [entry.text == "–" for entry in row[1:]] for row in scores.rows}
    assert rows == {
        "base": [False, False],
        "soup swahili": [False, True],
        "soup telugu": [True, False],
        "swap language=swahili": [False, True],
        "swap language=telugu": [True, False],
    }


def test_every_format_can_be_written(run: Run, tmp_path: Path) -> None:
    written = build(run, ["md", "csv", "latex", "html"], tmp_path)
    (csv,) = [path for path in written.files if path.name == "scores.csv"]
    assert "experts.task" in csv.read_text().splitlines()[0]
    (text,) = [path.read_text() for path in written.files if path.name == "report.md"]
    assert "| task=middle against task=near |" in text
    assert "One pair of experts in each setting: the intervals are over items" in text
