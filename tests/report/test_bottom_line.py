"""The first screen: what it says of studies whose answer is known because we chose it."""

from pathlib import Path

import pytest

from ablations.report.bottom_line import as_text, bottom_line
from ablations.report.comparisons import Comparer, compare_all
from ablations.report.compose import compose
from ablations.report.merged import as_merged
from ablations.report.observations import Observations
from ablations.report.score_maps import layer_map
from ablations.report.summaries import Summaries
from ablations.report.wording import mark
from ablations.runner.records import Run
from tests.report.runs import Ability, Point, study_of, write_run

BASELINES = ["task_expert", "language_expert", "soup"]


def _ability(gain: float) -> Ability:
    def ability(point: Point, task: str) -> float:
        english = 1.0 if task.endswith("en") else 0.0
        known = {"task_expert": -0.5 + english, "language_expert": -2.0, "soup": -1.0}
        swap = -0.5 + gain * float(point.values.get("bottom_layers", 0))
        return known.get(point.kind, swap if not english else -1.5)

    return ability


def _run(folder: Path, gain: float, **changes: object) -> Run:
    given = {"baseline": BASELINES, "vary": {"bottom_layers": [0, 1, 2]}, **changes}
    return write_run(folder, study_of(**given), _ability(gain), items=300)


def test_a_swap_that_wins_beats_both_rivals_and_its_cost_is_said(tmp_path: Path) -> None:
    first, among, cost, limits = bottom_line(_run(tmp_path, 1.0))
    assert first.startswith(
        "On math, Swahili, b=2 u=2 (the best of 3 settings on one half of the items) was compared "
        "on the other half: it beats the soup by "
    )
    assert "and beats the better expert (task expert) by " in first
    assert first.endswith("The better expert was chosen on the same half as the setting.")
    assert among.startswith("Among the 3 settings none is significantly better on math, Swahili ")
    assert cost.startswith("On the other tasks: math, English -")
    assert cost.endswith(" compared with the task expert (exploratory).")
    assert limits.startswith("What the data cannot tell: with 150 items, differences under about ")
    assert "One training run of each expert" in limits


def test_a_swap_that_loses_and_one_that_changes_nothing(tmp_path: Path) -> None:
    (first, *_) = bottom_line(_run(tmp_path / "loses", -2.0, vary={"bottom_layers": [1]}))
    assert first.startswith("On math, Swahili, the layer swap is ")
    assert " worse than the soup" in first
    (first, *_) = bottom_line(_run(tmp_path / "same", 0.0))
    assert "does not differ significantly from the better expert (task expert) (" in first


def test_rivals_without_a_difference_share_a_clause(tmp_path: Path) -> None:
    study = study_of(baseline=BASELINES, vary={"bottom_layers": [1]})
    (first, *_) = bottom_line(write_run(tmp_path, study, lambda _, __: 0.0, items=100))
    assert first.count("does not differ significantly from the ") == 1
    assert "]) or from the " in first


def test_it_calls_evidence_what_the_tables_call_so(tmp_path: Path) -> None:
    """At a level of 0.999 an interval reaches zero where p is still below 0.05."""
    seen = set()
    for number, gain in enumerate((0.0, 0.5, 1.0, 1.5, 2.0)):
        run = _run(tmp_path / str(number), gain, vary={"bottom_layers": [1]})
        evaluate = run.study.evaluate.model_copy(update={"level": 0.999})
        study = run.study.model_copy(update={"evaluate": evaluate})
        run = run.model_copy(update={"head": run.head.model_copy(update={"study": study})})
        comparisons = compare_all(Observations(run), Comparer(seed=0, level=0.999))
        primary = [each for each in comparisons if each.is_primary]
        (first, *_) = bottom_line(run)
        said = [f"beats the {each.contrast.second} by " in first for each in primary]
        assert said == [mark(each) == "*" for each in primary]
        seen |= {(each.p_holm or 0.0) < 0.05 for each in primary if mark(each) == ""}
    assert seen == {True, False}


def test_a_best_setting_that_swaps_no_layer_is_called_so(tmp_path: Path) -> None:
    counts = [{"bottom_layers": b, "top_layers": 0} for b in (0, 1)]
    (first, *_) = bottom_line(_run(tmp_path / "none", -2.0, vary=counts))
    assert "b=0 u=0 (the best of 2 settings on one half" in first
    assert first.endswith(" Note: b=0 u=0 swaps no layer; every layer is the task expert's.")
    (first, *_) = bottom_line(_run(tmp_path / "some", 2.0, vary=counts))
    assert "b=1 u=0 (the best of 2 settings on one half" in first
    assert "swaps no layer" not in first


def test_settings_against_the_first_one(tmp_path: Path) -> None:
    block = {"primary": {"against": ["first_setting"]}}
    first, limits = bottom_line(_run(tmp_path, 1.0, report=block))
    assert first.startswith("On math, Swahili, b=1 u=2 (+")
    assert " and b=2 u=2 (+" in first
    assert first.endswith(") are better than b=0 u=2.")
    assert "300 items" in limits


def test_bare_values_are_named_where_they_stand_first(tmp_path: Path) -> None:
    vary = {"placement": ["outer", "middle", "alternating"], "bottom_layers": [1]}
    block = {"primary": {"against": ["first_setting"]}}
    (first, *_) = bottom_line(_run(tmp_path, 0.0, vary=vary, report=block))
    assert first.startswith("On math, Swahili, placement middle (")
    assert "]) and alternating (" in first
    assert first.endswith("]) do not differ significantly from placement outer.")


def test_settings_come_first_where_the_study_names_them_first(tmp_path: Path) -> None:
    for number, against in enumerate((["first_setting", "soup"], ["soup", "first_setting"])):
        block = {"primary": {"against": against}}
        told = bottom_line(_run(tmp_path / str(number), 1.0, report=block))
        starts = [line.endswith(" are better than b=0 u=2.") for line in told]
        assert starts.index(True) == number


def test_only_the_parameters_that_the_study_asks_about_are_primary(tmp_path: Path) -> None:
    zone = [
        {"bottom_layers": b, "bottom_transition": t, "top_transition": t}
        for b in (1, 2)
        for t in (0, 1)
    ]
    block = {"primary": {"against": ["first_setting"], "parameters": ["bottom_transition"]}}
    first, limits = bottom_line(_run(tmp_path, 1.0, vary=zone, report=block))
    assert first.startswith("On math, Swahili, transition zone on (")
    assert first.endswith(") does not differ significantly from transition zone off.")
    assert limits.startswith("What the data cannot tell")


def test_pairs_of_settings_come_first_and_share_a_sentence(tmp_path: Path) -> None:
    block = {"primary": {"contrasts": [[2, 1], [3, 1]], "against": ["soup"]}}
    first, second, *_ = bottom_line(_run(tmp_path, 1.0, report=block))
    assert first.startswith("On math, Swahili, b=1 u=2 (+")
    assert " and b=2 u=2 (+" in first
    assert first.endswith(") are better than b=0 u=2.")
    assert "beats the soup by " in second


def test_experts_that_a_pair_of_settings_shares_are_said_once(tmp_path: Path) -> None:
    vary = [
        {"experts.task": task, "bottom_transition": t, "top_transition": t}
        for task in ("math", "math_2")
        for t in (0, 1)
    ]
    experts = {"base": "base", "language": {"sw": ["swahili"]}}
    block = {"primary": {"contrasts": [[2, 1], [4, 3]]}}
    study = study_of(baseline=BASELINES, vary=vary, experts=experts, report=block)
    first, *_ = bottom_line(write_run(tmp_path, study, lambda _, __: 0.0, items=50))
    assert first.startswith("On math, Swahili, t_b=1 t_u=1 (task=math) (")
    assert "]) and t_b=1 t_u=1 (task=math_2) (" in first
    assert first.endswith("]) do not differ significantly from t_b=0 t_u=0.")


def test_a_run_that_is_not_finished_says_so_first(tmp_path: Path) -> None:
    study = study_of(baseline=BASELINES, vary={"bottom_layers": [0, 1, 2]})
    left = frozenset({"math+swahili bottom_layers=2"})
    (first, *_) = bottom_line(write_run(tmp_path, study, _ability(1.0), items=100, unrun=left))
    assert first.startswith("Preliminary: 1 of 6 cells have no result yet. On math, Swahili")


def test_without_a_cell_or_a_comparison(tmp_path: Path) -> None:
    study = study_of(baseline=["base"])
    labels = frozenset({"base", "math+swahili"})
    nothing = write_run(tmp_path / "none", study, lambda _, __: 0.0, items=10, unrun=labels)
    assert bottom_line(nothing) == ()
    alone = study_of(baseline=["base"], recipe=None)
    (said, *_) = bottom_line(write_run(tmp_path / "base", alone, lambda _, __: 0.0, items=10))
    assert said.startswith("On math, Swahili: base ")


def test_without_a_recipe_the_experts_stand_beside_the_base(tmp_path: Path) -> None:
    names = ["fusion_1", "fusion_2", "fusion_3", "prefix_1", "prefix_2", "joint"]
    study = study_of(
        experts={"base": "base", "task": names}, baseline=["base", "task_expert"], recipe=None
    )

    def ability(point: Point, _: str) -> float:
        return 1.5 if point.experts.get("task", "").startswith("fusion") else -1.0

    left = frozenset({"task_expert prefix_2"})
    run = write_run(tmp_path, study, ability, items=100, unrun=left)
    first, *_ = bottom_line(run)
    start = "Preliminary: 1 of 7 cells have no result yet. On math, Swahili, fusion_1-3 ("
    assert first.startswith(start)
    better, level = first.split(") is better than the base (")
    assert "joint" not in better
    assert [name in level for name in ("prefix_1-2 (", "joint (", "fusion")] == [True, True, False]
    assert level.endswith(") do not differ significantly from it.")
    report, comparisons = compose(run)
    figure, table = report.lead
    assert figure.key == "differences"
    rows = {row[0].text: row[1] for row in table.rows}
    assert list(rows) == ["base", "fusion_1-3", "prefix_1-2", "joint"]
    scores = {cell.label: 100 * cell.scores[0].value for cell in run.cells}
    pooled = sum(scores[f"task_expert fusion_{n}"] for n in (1, 2, 3)) / 3
    assert rows["fusion_1-3"].text.startswith(f"{pooled:.1f} [")
    assert rows["prefix_1-2"].text.endswith("(1 of 2 cells)")
    assert {each.contrast.second for each in comparisons if each.is_primary} == {"base"}


def test_what_was_chosen_and_the_items_of_each_comparison_of_a_single_setting(
    tmp_path: Path,
) -> None:
    for number, against in enumerate((["soup", "better_expert"], ["better_expert", "soup"])):
        run = _run(tmp_path / str(number), 0.0, vary={}, report={"primary": {"against": against}})
        first, _, limits = bottom_line(run)
        places = [first.index("the soup "), first.index("the better expert (task expert) ")]
        assert (places == sorted(places)) == (number == 0)
        assert first.endswith(
            "Which expert is better was chosen on 150 items and compared on the other 150; the "
            "soup on all 300."
        )
        assert "points with 300 items (the soup)" in limits
        assert "points with 150 items (the better expert)" in limits


def test_few_items_are_the_reason_for_a_large_difference_without_evidence(tmp_path: Path) -> None:
    study = study_of(baseline=["base", "task_expert"], recipe=None)

    def ability(point: Point, _: str) -> float:
        return -9.0 if point.kind == "base" else 9.0

    first, _, limits = bottom_line(write_run(tmp_path, study, ability, items=5))
    assert first.startswith("On math, Swahili, the task expert (100.0; +100.0 points [+")
    assert (
        ", too few items for p < 0.05) does not differ significantly from the base (0.0)" in first
    )
    assert "with 5 items, no difference on math, Swahili can be significant" in limits


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every outer swap of at most three layers, best at b=2; the suggestion is b=0 u=1 t_u=1."""
    settings: list[dict[str, object]] = [
        {"suggest": True, "bottom_layers": 0, "top_layers": 1, "top_transition": 1}
    ]
    settings += [
        {"bottom_layers": b, "top_layers": u} for b in range(4) for u in range(4) if b + u <= 3
    ]

    def ability(point: Point, task: str) -> float:
        bottom, top = (point.values.get(f"{side}_layers", 0) for side in ("bottom", "top"))
        known = {"task_expert": -0.5, "language_expert": -2.0, "soup": -1.0}
        return known.get(point.kind, 1.0 - 1.5 * abs(float(bottom) - 2) - 1.5 * float(top))

    study = study_of(baseline=BASELINES, vary=settings)
    return write_run(tmp_path_factory.mktemp("mapped"), study, ability, items=200)


def test_the_map_finds_the_best_and_what_may_be_as_good(mapped: Run) -> None:
    run, _ = as_merged(mapped)
    found = layer_map(Summaries(Observations(run), Comparer(seed=0, level=0.95)))
    assert found is not None
    assert set(found.places) == {(b, u) for b in range(4) for u in range(4) if b + u <= 3}
    assert found.suggested_place == (0, 1)
    for best in found.best.values():
        assert best.best == found.places[2, 0]
        assert found.places[0, 3] not in best.near
        assert (best.number_of, best.items) == (10, 100)


def test_the_bottom_line_of_a_map_names_region_and_suggestion(mapped: Run) -> None:
    lines = bottom_line(mapped)
    assert len(lines) == 5
    assert lines[2].startswith("The best setting of the map on math, Swahili is b=2 u=0; ")
    assert "of 10 models are not significantly worse" in lines[2]
    assert lines[3].startswith("layerswap suggest proposes b=0 u=1 t_u=1: -")


def test_in_a_terminal_warnings_stand_first_and_lines_are_short() -> None:
    text = as_text("Why?", ["every score is 0"], ["word " * 60])
    lines = text.splitlines()
    assert lines[:2] == ["Why?", "Warning: every score is 0"]
    assert max(map(len, lines)) <= 100
    assert len(lines) > 4
