import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.report.bottom_line import bottom_line
from ablations.report.comparisons import (
    MCNEMAR,
    OVER_EXPERTS,
    Comparer,
    Comparison,
    compare_all,
)
from ablations.report.compose import compose
from ablations.report.design import recipe_models
from ablations.report.factors import factors
from ablations.report.observations import Item, Observations
from ablations.report.primary import halves
from ablations.report.summaries import Summaries
from ablations.report.wording import choice_text, contrast_text, noise_lines, verdict
from ablations.runner.records import Run, load_run
from ablations.statistics.as_text import points
from ablations.statistics.intervals import wilson_interval
from ablations.statistics.paired import holm, mcnemar_exact, newcombe_interval
from tests.report.runs import Point, same_model, study_of, write_run

TRANSITIONS = [{"bottom_transition": t, "top_transition": t} for t in (0, 1)]


def _compared(run: Run) -> list[Comparison]:
    return list(compare_all(Observations(run), Comparer(seed=0, level=0.95)))


def _of(comparisons: list[Comparison], task: str, first: str) -> Comparison:
    (found,) = [
        each
        for each in comparisons
        if (each.measure.task, each.contrast.first) == (task, first) and each.contrast.factor
    ]
    return found


def _steady(point: Point, task: str) -> float:
    return 0.0


def _values(run: Run, label: str, task: str) -> np.ndarray[Any, Any]:
    (cell,) = [cell for cell in run.cells if cell.label == label]
    values = [each.values for each in cell.samples() if each.task == task]
    return np.array([each["exact_match"] for each in values])


def test_one_pair_right_or_wrong_is_mcnemar_with_newcombes_interval(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(vary=TRANSITIONS), _steady)
    found = _of(_compared(run), "pocket_math_sw", "on").outcome
    assert found is not None
    off, on = (
        _values(run, f"math+swahili bottom_transition={t} top_transition={t}", "pocket_math_sw")
        for t in (0, 1)
    )
    table = [int(((on == a) & (off == b)).sum()) for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))]
    assert found.method == MCNEMAR
    assert found.p == mcnemar_exact(table[1], table[2])
    assert (found.low, found.high) == newcombe_interval(*table)
    assert found.difference == pytest.approx(on.mean() - off.mean())
    assert found.psi == pytest.approx((on != off).mean())
    assert (found.items, found.cells) == (250, 1)


def test_only_primary_comparisons_are_corrected_and_together(nine_pairs: Run) -> None:
    comparisons = _compared(nine_pairs)
    primary = [each for each in comparisons if each.is_primary]
    assert [(c.measure.task, c.contrast.second.split(" (")[0]) for c in primary] == [
        *(("mgsm_sw", "soup"), ("mgsm_sw", "better expert")),
        *(("mgsm_te", "soup"), ("mgsm_te", "better expert")),
    ]
    tested = [each.outcome.p for each in primary if each.outcome and each.outcome.p is not None]
    assert [each.p_holm for each in primary] == list(holm(tested))
    assert {each.family for each in primary} == {4}
    others = [each for each in comparisons if not each.is_primary]
    assert len(others) == 5 * (1 + 2 * 4)
    assert all(each.p_holm is None and each.family == 0 for each in others)
    assert {verdict(each).partition(":")[0] for each in others} == {"exploratory"}


def test_the_best_of_several_is_chosen_on_other_items_than_it_is_tested_on(tmp_path: Path) -> None:
    vary = {"bottom_layers": [0, 1, 2, 3]}
    study = study_of(baseline=["task_expert", "language_expert", "soup"], vary=vary)
    run = write_run(tmp_path, study, _steady, items=101)
    primary = [each for each in _compared(run) if each.is_primary]
    assert [each.contrast.rival for each in primary] == ["soup", "better_expert"]
    observations = Observations(run)
    (group,) = observations.groups
    measure = observations.measures(group)[0]
    items = observations.items(group, measure)
    choosing, testing = halves(items, study.evaluate.seed)
    assert sorted((*choosing, *testing)) == sorted(items)
    assert (len(choosing), len(testing)) == (50, 51)
    assert halves(items, study.evaluate.seed) == (choosing, testing)
    assert halves(items, study.evaluate.seed + 1) != (choosing, testing)

    def score(label: str, some: Sequence[Item]) -> float:
        values = _values(run, label, "pocket_math_sw")
        return float(np.mean([values[doc] for doc, _ in some]))

    settings = {f"b={b}": f"math+swahili bottom_layers={b}" for b in range(4)}
    best = max(settings, key=lambda name: score(settings[name], choosing))
    experts = {"task expert": "task_expert math", "language expert": "language_expert swahili"}
    better = max(experts, key=lambda name: score(experts[name], choosing))
    rivals = {"soup": "soup math swahili", f"better expert ({better})": experts[better]}
    for each, (second, label) in zip(primary, rivals.items(), strict=True):
        assert each.contrast.first == f"best of 4 settings ({best})"
        assert each.contrast.second == second
        assert each.contrast.chosen_on == 50
        assert each.outcome is not None
        assert each.outcome.items == 51
        expected = score(settings[best], testing) - score(label, testing)
        assert each.outcome.difference == pytest.approx(expected)
        chosen = "setting" if second == "soup" else "setting and expert"
        assert choice_text(each.contrast) == f"{chosen} chosen on 50 other items"


def test_a_best_of_many_equal_models_is_not_called_better(tmp_path: Path) -> None:
    """Eight settings and a soup of the same ability."""
    found = 0
    for trial in range(20):
        study = study_of(
            baseline=["soup"],
            vary={"bottom_layers": list(range(8))},
            evaluate={"tasks": [f"math{trial}_sw"]},
        )
        run = write_run(tmp_path / str(trial), study, _steady, items=60)
        (primary,) = [each for each in _compared(run) if each.is_primary]
        assert primary.outcome is not None
        found += primary.outcome.p is not None and primary.outcome.p < 0.05
    assert found <= 4


def test_a_study_names_its_primary_comparisons(tmp_path: Path) -> None:
    primary = {
        "against": ["soup", "first_setting"],
        "tasks": ["pocket_math_en"],
        "setting": {"bottom_layers": 2},
    }
    study = study_of(
        baseline=["soup"], vary={"bottom_layers": [0, 1, 2]}, report={"primary": primary}
    )
    run = write_run(tmp_path, study, _steady, items=40)
    found = [each for each in _compared(run) if each.is_primary]
    assert [(c.contrast.first, c.contrast.second) for c in found] == [
        *(("b=1", "b=0"), ("b=2", "b=0"), ("layer swap b=2", "soup")),
    ]
    assert {each.measure.task for each in found} == {"pocket_math_en"}
    assert {each.outcome.items for each in found if each.outcome} == {40}
    assert {each.family for each in found} == {3}


def test_a_study_names_pairs_of_settings(tmp_path: Path) -> None:
    primary = {"contrasts": [[2, 1], [3, 2]], "tasks": ["pocket_math_en"]}
    settings = [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (1, 0), (1, 1))]
    study = study_of(baseline=["soup"], vary=settings, report={"primary": primary})
    run = write_run(tmp_path, study, _steady, items=40)
    found = [each for each in _compared(run) if each.is_primary]
    scores = [
        float(np.mean(_values(run, cell.label, "pocket_math_en")))
        for cell in run.cells
        if cell.label.startswith("math+swahili")
    ]
    differences = {
        (each.contrast.first, each.contrast.second): each.outcome.difference
        for each in found
        if each.outcome is not None
    }
    assert differences == {
        ("b=1 u=0", "b=0 u=0"): pytest.approx(scores[1] - scores[0]),
        ("b=1 u=1", "b=1 u=0"): pytest.approx(scores[2] - scores[1]),
    }
    assert {each.family for each in found} == {2}
    said = bottom_line(run)
    for one, other in (("b=1 u=0", "b=0 u=0"), ("b=1 u=1", "b=1 u=0")):
        (line,) = (line for line in said if line.startswith(f"On math, English, {one} ("))
        assert line.endswith(f" {other}.")


def test_a_primary_task_that_nobody_answered_is_a_problem_of_the_report(tmp_path: Path) -> None:
    primary = {"tasks": ["pocket_math_se"]}
    study = study_of(baseline=["soup"], report={"primary": primary})
    run = write_run(tmp_path, study, _steady, items=30)
    report, comparisons = compose(run, draw=False)
    assert not any(each.is_primary for each in comparisons)
    (problem,) = report.problems
    assert "'pocket_math_se', which no cell has answered; did you mean 'pocket_math_sw'?" in problem


def test_settings_that_come_to_the_same_weights_count_once(tmp_path: Path) -> None:
    study = study_of(vary={"bottom_transition": [0, 2, 4]})
    run = write_run(tmp_path, study, _steady, items=60)
    two, four = (cell.label for cell in run.cells if cell.values["bottom_transition"])
    comparisons = _compared(same_model(run, two, four))
    assert len(comparisons) == 4
    first, second = [each for each in comparisons if each.is_primary]
    assert (first.family, second.family) == (1, 1)
    assert first.p_holm == second.p_holm


def test_averages_over_pairs_are_paired_by_item_and_expert(nine_pairs: Run) -> None:
    found = _of(_compared(nine_pairs), "mgsm_te", "on").outcome
    assert found is not None
    on, off = (
        np.mean(
            [
                _values(
                    nine_pairs,
                    f"math_{m}+tel_{t} bottom_transition={on} top_transition={on}",
                    "mgsm_te",
                )
                for m in (1, 2, 3)
                for t in (1, 2, 3)
            ],
            axis=0,
        )
        for on in (1, 0)
    )
    assert found.difference == pytest.approx(float((on - off).mean()))
    assert (found.cells, found.task_experts, found.language_experts) == (9, 3, 3)
    assert found.low < found.difference < found.high


@pytest.mark.parametrize(("ability", "score"), [(-99.0, 0), (99.0, 100)])
def test_pooled_rows_at_floor_and_ceiling_have_the_width_of_one_cell(
    ability: float, score: int, tmp_path: Path
) -> None:
    experts = {"task": ["math_1", "math_2"], "language": ["swahili"]}
    study = study_of(experts=experts, vary=TRANSITIONS, baseline=["soup"])
    run = write_run(tmp_path, study, lambda _, __: ability, items=100)
    observations = Observations(run)
    comparer = Comparer(seed=0, level=0.95)
    summaries = Summaries(observations, comparer)
    one = wilson_interval(score, 100)
    for group, measure in observations.measured():
        for model in recipe_models(study):
            pooled = summaries.of([model], group, measure)
            assert pooled is not None
            assert (pooled.cells, pooled.average) == (2, score / 100)
            assert pooled.interval == pytest.approx((one.low, one.high))
    for each in compare_all(observations, comparer):
        assert each.outcome is not None
        assert each.outcome.low < -0.02 < 0.02 < each.outcome.high
        assert each.outcome.p == 1.0


def test_the_p_value_and_the_interval_of_an_average_say_the_same(nine_pairs: Run) -> None:
    outcomes = [each.outcome for each in _compared(nine_pairs)]
    found = [each for each in outcomes if each is not None and each.p is not None]
    small = [each for each in found if (each.p or 0.0) < 0.05]
    assert 0 < len(small) < len(found)
    for each in found:
        assert (each in small) == (not each.low <= 0 <= each.high)
    assert {each.method for each in found} == {OVER_EXPERTS}


def test_a_failed_cell_is_left_out_on_both_sides(nine_pairs: Run) -> None:
    cells = {
        (each.contrast.first, each.group.language): each.outcome.cells
        for each in _compared(nine_pairs)
        if each.outcome is not None and each.contrast.second == "soup" and not each.is_primary
    }
    assert set(cells.values()) == {8, 9}
    assert {count for (_, language), count in cells.items() if language == "sw"} == {8}


def test_cells_with_the_same_weights_are_not_tested(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(vary=TRANSITIONS), _steady)
    first, second = (cell.label for cell in run.cells)
    comparisons = _compared(same_model(run, first, second))
    assert all(each.is_same_model and each.p_holm is None for each in comparisons)
    assert verdict(comparisons[0]) == "the same model, nothing to test"


def test_what_has_no_items_is_not_compared(tmp_path: Path) -> None:
    study = study_of(vary=TRANSITIONS, evaluate={"tasks": ["perplexity_sw"]})
    (found,) = _compared(write_run(tmp_path, study, _steady, items=20))
    assert found.outcome is None
    assert verdict(found) == "not compared, word_perplexity has no value per item"


def test_a_missing_cell_is_said_not_guessed(tmp_path: Path) -> None:
    gone = frozenset({"math+swahili bottom_transition=1 top_transition=1"})
    found = _compared(write_run(tmp_path, study_of(vary=TRANSITIONS), _steady, unrun=gone))
    assert [each.outcome for each in found] == [None, None]
    assert verdict(found[0]).startswith("not compared, cells are missing")


def test_only_items_that_all_answered_are_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path, study_of(vary=TRANSITIONS), _steady)
    for task in run.cells[0].tasks:
        lines = (task.folder / "samples.jsonl").read_text().split("\n")
        kept = [line for line in lines if '"doc_id":3,' not in line]
        assert len(kept) == len(lines) - 1
        (task.folder / "samples.jsonl").write_text("\n".join(kept))
        record = json.loads((task.folder / "record.json").read_text())
        record["sample_lines"] -= 1
        (task.folder / "record.json").write_text(json.dumps(record))
    run = load_run(run.path)
    assert {each.outcome.items for each in _compared(run) if each.outcome} == {249}


def test_noise_is_said_in_points_and_items(nine_pairs: Run, tmp_path: Path) -> None:
    observations = Observations(nine_pairs)
    comparisons = compare_all(observations, Comparer(seed=0, level=0.95))
    measures = [(g, m, 80, 0.4) for g in observations.groups for m in observations.measures(g)]
    lines = list(noise_lines(comparisons, measures, 0.95))
    assert len(lines) == 5
    assert re.search(
        r"mgsm, Telugu, n=80: two models compared here differ on \d+% of the items \(median\)\. "
        r"Between two single models, differences under \d+\.\d points are noise at 95%; a true "
        r"difference of \d+\.\d points is found with 80% power; one of 2\.0 points would take "
        r"\d,\d{3} items\.",
        lines[4],
    )
    assert "BLEU differences under about" in lines[2]
    alone = list(noise_lines((), measures[:1], 0.95))
    assert "two models at 40.0% that fail independently differ on 48%" in alone[0]


def test_points_have_a_sign_and_no_negative_zero() -> None:
    assert [points(each) for each in (0.004, -0.013, 0.0, -0.0001)] == [
        *("+0.4", "-1.3", "+0.0", "+0.0"),
    ]


def test_draws_are_averaged_and_settings_weigh_alike(tmp_path: Path) -> None:
    places = [{"placement": "outer"}, *({"placement": "random", "seed": s} for s in (0, 1, 2))]
    vary = [{**place, "bottom_layers": b} for b in (1, 2) for place in places]
    run = write_run(tmp_path, study_of(vary=vary), _steady, items=80)

    def score(place: str, b: int, *seeds: int) -> float:
        ends = [f" seed={seed}" for seed in seeds] or [""]
        labels = [f"math+swahili placement={place}{end} bottom_layers={b}" for end in ends]
        return float(np.mean([_values(run, label, "pocket_math_sw") for label in labels]))

    one, two = ((score("outer", b), score("random", b, 0, 1, 2)) for b in (1, 2))
    comparisons = _compared(run)
    assert len(comparisons) == 2 * 2
    drawn = _of(comparisons, "pocket_math_sw", "random")
    assert drawn.outcome is not None
    assert drawn.outcome.difference == pytest.approx((one[1] + two[1] - one[0] - two[0]) / 2)
    assert drawn.outcome.cells == 6
    assert contrast_text(drawn) == "placement random against outer"
    counts = _of(comparisons, "pocket_math_sw", "b=2")
    assert counts.outcome is not None
    # The three draws of the random placement weigh as much as the one outer placement.
    assert counts.outcome.difference == pytest.approx((sum(two) - sum(one)) / 2)
    assert counts.outcome.cells == 4
    summaries = Summaries(Observations(run), Comparer(seed=0, level=0.95))
    level = factors(run.study)[1].levels[0]
    found = summaries.of(level.models, counts.group, counts.measure)
    assert found is not None
    assert found.average == pytest.approx(sum(one) / 2)
    assert (found.cells, found.expected) == (4, 4)
