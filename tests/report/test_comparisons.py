"""Comparisons of made-up runs: known answers, and nothing that the study asks is left out."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import sacrebleu
from scipy import stats

from ablations.report.analysis import analyse
from ablations.report.comparisons import (
    BETTER,
    NO_RESULT,
    ONE_MODEL,
    SAME,
    UNCLEAR,
    WORSE,
    TaskComparison,
    compare_sides,
    partial_comparisons,
    with_verdicts,
)
from ablations.report.model_scores import pairs_above
from ablations.report.shown_tasks import matrix_of
from ablations.report.tables import verdict_text
from ablations.report.write import make_report
from ablations.runs.observations import CELL
from ablations.runs.records import write_run_file
from ablations.runs.run import load_run
from ablations.runs.score_table import shown_rows
from ablations.statistics.holm import holm
from layerswap_method.errors import InputError
from tests.report.runs import BASELINES, level, same_model, study_of, write_run

TASK = "pocket_math_sw"


def compared(run):
    return analyse(run).comparison_frame


def note_on_comparisons(run):
    tables = make_report(run, draw=False).tables
    (note,) = next(table for table in tables if table.attrs["key"] == "comparisons").attrs["notes"]
    return note


def one(frame, **where):
    for name, value in where.items():
        frame = frame[frame[name] == value]
    (row,) = frame.to_dict("records")
    return row


def answers(run, label, task):
    """Return the values of a cell, straight from its record."""
    cell = next(cell for cell in run.cells if cell.label == label)
    path = run.path / "records" / f"{cell.record_keys[task]}.jsonl"
    _, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [next(iter(line["values"].values())) for line in lines]


def mean_of(run, cell, task):
    return np.mean(answers(run, cell.label, task))


def means_of(run, task):
    """Return label -> mean of every cell that has the task."""
    return {cell.label: mean_of(run, cell, task) for cell in run.cells if task in cell.record_keys}


def test_two_single_cells_have_the_exact_test(tmp_path):
    run = write_run(tmp_path, study_of(baseline=BASELINES), level, items=120)
    frame = compared(run)
    for kind in BASELINES:
        other = answers(run, next(c.label for c in run.cells if c.kind == kind), TASK)
        own = answers(run, next(c.label for c in run.cells if c.kind == "recipe"), TASK)
        row = one(frame, task=TASK, second=kind.replace("_", " "))
        won = sum(a > b for a, b in zip(own, other, strict=True))
        lost = sum(a < b for a, b in zip(own, other, strict=True))
        assert row["difference"] == pytest.approx((won - lost) / 120)
        assert row["p"] == pytest.approx(stats.binomtest(won, won + lost).pvalue)
        assert row["low"] < row["difference"] < row["high"]
        assert (row["items"], row["cells"]) == (120, 2)


def test_pairs_of_experts_are_averaged_over_the_same_items(nine_pairs):
    frame = compared(nine_pairs)
    english = frame[(frame["task"] == "mgsm_en") & (frame["second"] == "task expert")]
    assert set(english["language"]) == {"sw", "te"}  # languages of experts are not mixed
    assert set(frame[frame["task"] == "mgsm_te"]["language"]) == {"te"}
    mean = means_of(nine_pairs, "mgsm_te")
    swaps = [c for c in nine_pairs.cells if (c.kind, c.language) == ("recipe", "te")]
    settings = nine_pairs.study.settings()
    for setting, role in itertools.product(settings, ("task", "language")):
        own = [cell for cell in swaps if cell.values == setting]
        assert len(own) == 9
        expected = [mean[c.label] - mean[f"{role} expert {c.experts[role]}"] for c in own]
        first = f"layer swap t_b={setting['bottom_transition']} t_u={setting['top_transition']}"
        row = one(frame, task="mgsm_te", language="te", first=first, second=f"{role} expert")
        assert row["difference"] == pytest.approx(np.mean(expected))
        assert row["cells"] == 9 + 3
        # One method: p and interval agree.
        assert (row["p"] < 0.05) == (not row["low"] <= 0 <= row["high"])


def test_a_failed_cell_leaves_its_pair_out(nine_pairs):
    first = "layer swap t_b=0 t_u=0"
    row = one(compared(nine_pairs), task="mgsm_sw", first=first, second="soup", language="sw")
    assert row["cells"] == 8 + 8
    mean = {
        (c.kind, c.experts["task"], c.experts["language"]): mean_of(nine_pairs, c, "mgsm_sw")
        for c in nine_pairs.cells
        if c.kind in ("recipe", "soup") and c.language == "sw" and 1 not in c.values.values()
    }
    differences = [
        mean["recipe", *pair] - value for (kind, *pair), value in mean.items() if kind == "soup"
    ]
    assert row["difference"] == pytest.approx(np.mean(differences))


def side(cells, model):
    """Return the values of a model: (task expert, language expert) -> values of its items."""
    index = pd.MultiIndex.from_tuples(
        [(model, *experts, "", "", f"{model}{experts}") for experts in cells],
        names=[*CELL, "language", "weights"],
    )
    return pd.DataFrame([*cells.values()], index=index)


def scored(*experts, mean=0.5, items=40, seed=0):
    """Return values with the same right answers for cells of the same experts."""
    rng = np.random.default_rng(seed)
    return {pair: (rng.random(items) < mean).astype(float) for pair in experts}


SIDES = [
    ((("t1", ""), ("t2", ""), ("t3", "")), (("t3", ""), ("t4", ""))),
    ((("t1", ""), ("t2", "")), (("t1", "s1"), ("t1", "s2"), ("t2", "s1"))),
    ((("t1", "s1"), ("t1", "s2"), ("t2", "s1"), ("t2", "s2")), (("t1", ""), ("t2", ""))),
    ((("t1", "s1"), ("t1", "s2"), ("t2", "s1")), (("t1", "s1"), ("t2", "s2"), ("t2", "s1"))),
    ((("t1", ""),), (("t1", ""), ("t2", ""), ("t3", ""))),
    ((("t1", ""),), (("t1", ""),)),
]


@pytest.mark.parametrize("experts", SIDES)
def test_a_minus_b_is_minus_b_minus_a(experts):
    first, second = (
        side(scored(*each, mean=0.4 + 0.2 * at, seed=at), "AB"[at])
        for at, each in enumerate(experts)
    )
    there = vars(compare_sides(first, second, 0.95, 0.02))
    back = vars(compare_sides(second, first, 0.95, 0.02))
    for name in ("p", "p_margin", "items", "cells"):
        assert there[name] == pytest.approx(back[name]), name
    numbers = [there[name] for name in ("difference", "low", "high")]
    assert numbers == pytest.approx([-back[name] for name in ("difference", "high", "low")])


@pytest.mark.parametrize("items", [20, 40, 100, 250])
def test_pairs_that_agree_on_all_items_are_no_more_items(items):
    """Nine pairs with the same answers know no more of other items than one, by Tango's test."""
    pairs = [(f"t{task}", f"s{language}") for task in range(3) for language in range(3)]
    nine, one = (
        vars(
            compare_sides(
                *(side(dict.fromkeys(cells, np.zeros(items)), x) for x in "AB"), 0.95, 0.02
            )
        )
        for cells in (pairs, pairs[:1])
    )
    assert nine["p_margin"] > 0.98**items / 2  # as one item in fifty that differs does not show
    assert nine["high"] == pytest.approx(one["high"], rel=0.1)
    assert nine["p"] == one["p"] == 1.0


@pytest.mark.parametrize(("items", "is_shown"), [(100, False), (149, True)])
def test_equal_items_that_are_no_shares_show_no_difference_if_they_are_many(items, is_shown):
    """Of 100 items, of which 2 % differ by 1, none differs in 13 % of samples; of 149 in 4.9 %."""
    same = np.full(items, 0.37)
    numbers = compare_sides(*(side({("t1", "s1"): same}, x) for x in "AB"), 0.95, 0.02)
    assert (numbers.low, numbers.high, numbers.p) == (None, None, 1.0)
    assert (numbers.p_margin < 0.05) == is_shown


def test_one_item_shows_nothing_however_the_experts_differ_on_it():
    tasks = [("t1", ""), ("t2", ""), ("t3", ""), ("t4", ""), ("t5", "")]
    first = side({pair: np.array([float(pair != tasks[0])]) for pair in tasks}, "A")
    numbers = compare_sides(first, side(dict.fromkeys(tasks, np.zeros(1)), "B"), 0.95, 0.02)
    assert (numbers.difference, numbers.low, numbers.p) == (pytest.approx(0.8), None, 1.0)


def test_other_experts_are_not_left_out_of_a_difference():
    """Of three trainings and two others, one is the same: .65 and .1, and not .1 and .1."""
    right = {number: np.repeat([1.0, 0.0], [number, 100 - number]) for number in (90, 10)}
    first = side({("t1", ""): right[90], ("t2", ""): right[90], ("t3", ""): right[10]}, "A")
    second = side({("t3", ""): right[10], ("t4", ""): right[10]}, "B")
    numbers = compare_sides(first, second, 0.95, 0.02)
    assert numbers.difference == pytest.approx(first.to_numpy().mean() - 0.1)
    assert numbers.cells == 5


@pytest.mark.parametrize("shape", [(2, 2), (2, 1), (3, 3)])
def test_no_interval_is_beyond_what_a_score_can_differ_by(shape):
    """Two trainings that differ much set no limit, and the report says that in place of one."""
    first, second = (
        side(
            {
                (f"t{number}", ""): np.repeat([1.0, 0.0], [90, 10][:: 1 - 2 * (number % 2)])
                for number in range(count)
            },
            name,
        )
        for name, count in zip("AB", shape, strict=True)
    )
    second.iloc[:] = 0.5
    row = vars(compare_sides(first, second, 0.95, 0.02))
    assert -1 <= row["low"] <= row["difference"] <= row["high"] <= 1
    row = {"verdict": UNCLEAR, "clusters": 0, **row}
    if shape != (3, 3):
        assert verdict_text(row) == (
            "cannot tell: too few trainings or items to limit the difference"
        )
    assert "points possible" in verdict_text({**row, "low": -0.4, "high": 0.6})
    few = {**row, "low": -1.0, "high": 0.9, "cells": 2}
    assert verdict_text(few).endswith("too few items to limit the difference")


def test_a_mean_over_bases_is_not_beyond_what_a_score_can_differ_by(tmp_path):
    vary = [{"experts.base": base, "experts.task": [f"math_{base}"]} for base in ("b1", "b2")]
    study = study_of(vary=vary, baseline=["task_expert"], evaluate={"tasks": [TASK]})

    def ability(cell, task):
        return 9.0 if (cell.kind, cell.experts["task"]) == ("recipe", "math_b1") else -9.0

    row = one(compared(write_run(tmp_path, study, ability, items=20)), clusters=2)
    assert (row["low"], row["high"]) == (-1.0, 1.0)
    assert verdict_text(row).endswith("the 2 means differ too much to limit the difference")


def test_a_verdict_has_the_level_of_its_interval(tmp_path):
    verdicts = []
    for level_ in (0.95, 0.999):
        study = study_of(baseline=["soup"], evaluate={"tasks": [TASK], "level": level_})
        run = write_run(
            tmp_path / str(level_), study, lambda cell, _: 0.35 * (cell.kind == "recipe"), items=250
        )
        row = one(compared(run), task=TASK)
        is_evidence = row["verdict"] in (BETTER, WORSE)
        assert is_evidence == (not row["low"] <= 0 <= row["high"])
        verdicts.append(row["verdict"])
    assert verdicts == [BETTER, UNCLEAR]


def test_cells_that_are_left_out_are_named(nine_pairs):
    (line,) = (
        note
        for note in make_report(nine_pairs, draw=False).notes
        if note.startswith("mgsm_sw: layer swap t_b=0 t_u=0 and soup")
    )
    assert "over 16 of their 17 cells" in line


MATH = [f"math_{number}" for number in (1, 2, 3, 4)]
SEEDS = {"placement": ["random"], "bottom_layers": [1, 2], "seed": [0, 1, 2]}
MISSING = [
    (["math_4+swahili layer swap"], {}, "soup", 6),
    (["soup math_4+swahili"], {}, "soup", 6),
    (["task expert math_4"], {}, "task expert", 6),
    ([f"{name}+swahili layer swap b=2 u=1 seed=2" for name in MATH], SEEDS, "layer swap b=1", 16),
]


@pytest.mark.parametrize(("missing", "vary", "second", "cells"), MISSING)
def test_a_cell_that_is_missing_leaves_its_counterpart_out(tmp_path, missing, vary, second, cells):
    """The last expert and seed are far better, and one side lacks them; all else is equal."""
    baseline = [] if vary else ["soup", "task_expert"]
    experts = {"task": MATH, "language": ["swahili"]}
    study = study_of(vary=vary, experts=experts, baseline=baseline, evaluate={"tasks": [TASK]})

    def ability(cell, task):
        is_better = cell.experts["task"] == MATH[-1] or cell.values.get("seed") == 2
        return 99.0 if is_better else -99.0

    run = write_run(tmp_path, study, ability, items=20, unrun=missing)
    assert [cell.label for cell in run.unfinished] == missing
    analysis = analyse(run)
    (row,) = (row for row in analysis.comparisons if row.second.startswith(second))
    assert (row.difference, row.cells) == (pytest.approx(0), cells)
    notes = partial_comparisons(analysis.comparisons, analysis.shown)
    start = f"{TASK}: {row.first} and {row.second} are compared over {cells} of their "
    assert any(note.startswith(start) for note in notes)


def test_bleu_is_that_of_sacrebleu(nine_pairs):
    data, scores = nine_pairs.observations, nine_pairs.scores
    shown = shown_rows(scores, None).loc["translate_sw"]
    means = matrix_of(data, shown).mean(axis=1).rename("score").reset_index()
    cells = {cell.label: cell for cell in nine_pairs.cells if cell.kind == "recipe"}
    for cell in list(cells.values())[:3]:
        pairs = answers(nine_pairs, cell.label, "translate_sw")
        gold, text = zip(*pairs, strict=True)
        experts = {f"{role}_expert": cell.experts[role] for role in ("task", "language")}
        row = one(means, weights=cell.weights_key, **experts)
        expected = sacrebleu.corpus_bleu(list(text), [list(gold)], force=True).score / 100
        assert row["score"] == pytest.approx(expected)


def test_the_order_of_experts_in_the_file_is_of_no_matter(tmp_path):
    """Experts of two settings are no pairs: the first seed of one is not the other's first."""
    names = [f"lora_{i}" for i in range(3)]

    def ability(cell, task):
        return {"math_1": 0.9, "math_2": 0.0, "math_3": -0.9}.get(cell.experts["task"], 0.3)

    team = {"experts.task": ("math_1", "math_2", "math_3")}
    study = study_of(vary=[team, {"experts.task": tuple(names)}], experts={"language": ["swahili"]})
    run = write_run(tmp_path, study, ability, items=200)
    turned = {"experts.task": tuple(names[::-1])}
    cells = tuple(
        cell if cell.values == team else cell.model_copy(update={"values": turned})
        for cell in run.head.cells
    )
    study = run.study.model_copy(update={"vary": (team, turned)})
    write_run_file(tmp_path, run.head.model_copy(update={"study": study, "cells": cells}))
    rows = [one(compared(each), task=TASK) for each in (run, load_run(tmp_path))]
    for name in ("difference", "low", "high", "p"):
        assert rows[0][name] == pytest.approx(rows[1][name])
    assert rows[0]["family"] == "primary"


def test_every_primary_comparison_is_there_and_corrected_with_the_others(tmp_path):
    codes = ["sw", "te", "bn", "ja", "de", "fr"]
    study = study_of(
        experts={"task": ["math"], "language": {code: [f"{code}_1"] for code in codes}},
        baseline=["soup", "task_expert", "language_expert"],
        evaluate={"languages": {code: [f"mgsm_{code}"] for code in codes}, "tasks": ["mgsm_en"]},
    )
    frame = compared(write_run(tmp_path, study, level, items=60))
    primary = frame[frame["family"] == "primary"]
    assert set(zip(primary["task"], primary["second"], strict=True)) == {
        (f"mgsm_{code}", rival)
        for code in codes
        for rival in ("soup", "task expert", "language expert")
    }
    assert frame["family"].tolist() == sorted(frame["family"], reverse=True)
    assert primary["p_holm"].tolist() == pytest.approx(holm(primary["p"].tolist()))
    assert frame[frame["family"] == ""]["p_holm"].isna().all()
    over = frame[frame["clusters"] == 6]
    assert set(over["second"]) == {"soup", "task expert", "language expert"}
    for row in over.to_dict("records"):
        parts = primary[primary["second"] == row["second"]]["difference"]
        expected = stats.ttest_1samp(parts, 0)
        assert row["p"] == pytest.approx(expected.pvalue)
        low, high = expected.confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_languages_with_other_metrics_have_no_mean(tmp_path):
    languages = {"sw": ["translate_sw"], "te": ["mgsm_te"]}
    experts = {"task": ["math"], "language": {code: [f"{code}_1"] for code in languages}}
    study = study_of(experts=experts, baseline=["soup"], evaluate={"languages": languages})
    assert not compared(write_run(tmp_path, study, level, items=30))["clusters"].any()


@pytest.mark.parametrize(
    ("sw", "te", "number"),
    [
        (["mgsm_sw"], ["mgsm_te"], 2),
        (["mgsm_sw"], ["global_mgsm_te"], 0),  # as for a language that MGSM lacks
        (["belebele_sw", "mmlu_sw"], ["belebele_te", "mmlu_te"], 0),  # one of which did not run
    ],
)
def test_a_mean_over_languages_is_of_one_benchmark(sw, te, number, tmp_path):
    languages = {"sw": sw, "te": te}
    experts = {"task": ["math"], "language": {code: [f"{code}_1"] for code in languages}}
    primary = {"tasks": [*sw, *te]}
    study = study_of(
        experts=experts,
        baseline=["soup"],
        evaluate={"languages": languages},
        report={"primary": primary},
    )
    run = write_run(tmp_path, study, level, items=30)
    for cell in run.cells:
        for record in cell.task_records:
            if record.task == "belebele_sw":
                (run.path / "records" / f"{record.key}.jsonl").unlink(missing_ok=True)
    frame = compared(load_run(run.path))
    assert sorted({*frame["clusters"]} - {0}) == [number] * bool(number)


def test_the_best_of_several_settings_is_all_of_them(tmp_path):
    vary = [{"bottom_layers": b, "top_layers": 1} for b in (0, 1, 2)]
    for primary, number in (
        ({}, 3 * 3),
        ({"setting": {"bottom_layers": 1.0, "top_layers": 1}}, 3),
        ({"against": ["soup"]}, 3),
        ({"against": ["first_setting"]}, 2),
        ({"contrasts": [[2, 1], [3, 2]]}, 2),
        ({"against": ["soup"], "tasks": [TASK, "pocket_math_en"]}, 6),
    ):
        study = study_of(vary=vary, baseline=BASELINES, report={"primary": primary})
        run = write_run(tmp_path / str(len(list(tmp_path.iterdir()))), study, level, items=30)
        frame = compared(run)
        assert (frame["family"] == "primary").sum() == number, primary
    assert (frame["first"][0], frame["second"][0]) == ("layer swap b=0 u=1", "soup")


def test_settings_in_a_grid_are_compared_where_they_differ_in_nothing_else(tmp_path):
    vary = {"bottom_layers": [0, 1], "bottom_transition": [0, 1, 2]}

    def ability(cell, task):
        return 0.6 * cell.values["bottom_layers"] + 0.1 * cell.values["bottom_transition"]

    run = write_run(tmp_path, study_of(vary=vary), ability, items=150)
    row = one(compared(run), task=TASK, first="b=1")
    by_setting = {
        tuple(cell.values.values()): np.mean(answers(run, cell.label, TASK)) for cell in run.cells
    }
    expected = [by_setting[1, zone] - by_setting[0, zone] for zone in (0, 1, 2)]
    assert row["difference"] == pytest.approx(np.mean(expected))
    assert (row["second"], row["cells"]) == ("b=0", 6)
    assert "95% intervals over items." in note_on_comparisons(run)  # six settings, one training


def test_seeds_of_a_setting_are_drawn_and_count_as_an_axis(tmp_path):
    vary = {"placement": ["outer", "random"], "seed": [0, 1]}
    placements = write_run(tmp_path, study_of(baseline=["soup"], vary=vary), level, items=80)
    frame = compared(placements)
    row = one(frame, first="layer swap random", second="soup", task=TASK)
    drawn = [cell for cell in placements.cells if cell.values.get("placement") == "random"]
    (soup,) = (cell for cell in placements.cells if cell.kind == "soup")
    own = [mean_of(placements, cell, TASK) for cell in drawn]
    assert len(own) == 2
    assert row["difference"] == pytest.approx(np.mean(own) - mean_of(placements, soup, TASK))
    assert "95% intervals over seeds and items." in note_on_comparisons(placements)


def test_baselines_of_several_teams_are_compared_with_their_own_merges(tmp_path):
    vary = [{"experts.task": [f"{team}_1", f"{team}_2"]} for team in ("math", "hot")]
    study = study_of(vary=vary, experts={"language": ["swahili"]}, baseline=["soup", "task_expert"])
    frame = compared(write_run(tmp_path, study, level, items=40))
    pairs = set(zip(frame["first"], frame["second"], strict=True))
    assert pairs == {
        *(
            (f"layer swap task={team}_1-2", f"{kind} {team}_1-2")
            for team in ("math", "hot")
            for kind in ("soup", "task expert")
        ),
        ("layer swap task=hot_1-2", "layer swap task=math_1-2"),
    }


def test_over_bases_the_number_of_bases_counts(tmp_path):
    vary = [  # two settings on the first base
        {"experts.base": f"base_{n[0]}", "experts.task": f"math_{n}", "experts.language": f"l_{n}"}
        for n in ("0a", "0b", "1a", "2a", "3a")
    ]
    study = study_of(vary=vary, experts={}, baseline=["soup"], evaluate={"tasks": [TASK]})
    frame = compared(write_run(tmp_path, study, level, items=80))
    own = frame[frame["second"].str.startswith("soup math")]["difference"].tolist()
    assert len(own) == 5
    row = one(frame[frame["clusters"] > 0])  # and none of a swap minus a swap of another base
    assert (row["second"], row["clusters"]) == ("soup, mean of 4 bases", 4)
    expected = stats.ttest_1samp([np.mean(own[:2]), *own[2:]], 0)
    assert row["p"] == pytest.approx(expected.pvalue)


def test_models_of_the_same_weights_are_not_tested(tmp_path):
    codes = ("sw", "te", "bn")
    study = study_of(
        experts={"task": ["math"], "language": {code: [f"{code}_1"] for code in codes}},
        baseline=["soup"],
        evaluate={"languages": {code: [f"mgsm_{code}"] for code in codes}},
    )
    run = write_run(tmp_path, study, level, items=20)
    frame = compared(same_model(run, *(c.label for c in run.cells if c.language == "te")))
    assert one(frame, language="all")["clusters"] == 3  # a difference of zero is one, too
    row = one(frame, task="mgsm_te")
    assert (row["verdict"], row["difference"]) == (ONE_MODEL, 0.0)
    assert pd.isna([row["p"], row["p_holm"]]).all()


def test_settings_of_the_same_weights_are_one_hypothesis(tmp_path):
    vary = [{"bottom_layers": b, "top_layers": 1} for b in (0, 1, 2)]
    run = write_run(tmp_path, study_of(vary=vary, baseline=["soup"]), level, items=20)
    labels = [cell.label for cell in run.cells if cell.kind == "recipe"]
    run = same_model(run, labels[0], labels[1])
    models = run.models
    names = [model.label for model in models if model.kind == "recipe"]
    assert names == ["layer swap b=0 u=1", "layer swap b=2 u=1"]
    assert [dict(same) for same in models[1].same] == [vary[1]]
    assert (compared(run)["family"] == "primary").sum() == 2


def test_a_merge_that_takes_nothing_of_an_expert_is_one_model_with_all(tmp_path):
    study = study_of(experts={"task": ["joint_1", "joint_2"], "language": ["s_1", "s_2", "s_3"]})
    run = write_run(tmp_path, study, level, items=20)
    for task in ("joint_1", "joint_2"):
        cells = [c.label for c in run.cells if c.experts["task"] == task]
        for other in cells[1:]:
            run = same_model(run, cells[0], other)
    data = run.observations
    assert set(data["language_expert"]) == {""}
    assert set(data["task_expert"]) == {"joint_1", "joint_2"}
    assert len(data) == 2 * 2 * 20


def test_a_primary_comparison_without_a_result_stays(tmp_path):
    study = study_of(baseline=["soup", "task_expert"])
    run = write_run(tmp_path, study, level, items=20, unrun={"soup"})
    row = one(compared(run), second="soup", task=TASK)
    assert (row["family"], row["verdict"]) == ("primary", NO_RESULT)


def test_pairs_above_both_of_their_own_experts(nine_pairs):
    data, scores = nine_pairs.observations, nine_pairs.scores
    models = nine_pairs.models
    model = next(model for model in models if model.kind == "recipe")
    shown = shown_rows(scores, None).loc["mgsm_te"]
    found = pairs_above(matrix_of(data, shown), model, models, "te")
    mean = means_of(nine_pairs, "mgsm_te")
    swaps = {c.label: c.experts for c in nine_pairs.cells if c.label in {*mean} & {*model.cells}}
    own = [mean[label] for label in swaps]
    above = sum(
        mean[label] > max(mean[f"{role} expert {pair[role]}"] for role in ("task", "language"))
        for label, pair in swaps.items()
    )
    assert found == (9, above, min(own), max(own))
    soup = next(model for model in models if model.kind == "soup")
    assert pairs_above(matrix_of(data, shown), model, [soup], "te") is None


def test_a_task_that_is_not_there_is_named_with_the_nearest(tmp_path):
    study = study_of(baseline=["soup"], report={"primary": {"tasks": ["pocket_math_swa"]}})
    with pytest.raises(InputError, match=r"tasks: 'pocket_math_swa'.*math_sw'"):
        compared(write_run(tmp_path, study, level, items=10))


def test_a_metric_that_is_not_there_is_a_warning_with_the_nearest(tmp_path):
    """A study is refused before it runs, where the task files say their metrics."""
    study = study_of(baseline=["soup"], report={"metric": "exact_mach"})
    report = make_report(write_run(tmp_path, study, level, items=10), draw=False)
    (text,) = (line for line in report.problems if line.startswith("report.metric: "))
    assert text.startswith("report.metric: 'exact_mach' is not in the run; did you mean 'exact_m")


def test_scaled_counts_name_the_models(tmp_path):
    """Counts of 32 layers on a model of 8; two settings come to one."""
    counts = [{"bottom_layers": b, "top_layers": u} for b, u in ((0, 0), (3, 1), (4, 1), (6, 2))]
    run = write_run(tmp_path, study_of(vary=counts, reference_layers=32), level, items=20)
    labels = [model.label for model in run.models]
    assert labels == ["layer swap b=0 u=0", "layer swap b=1 u=0", "layer swap b=2 u=1"]


@pytest.mark.parametrize(
    ("difference", "p", "p_margin", "higher", "verdict"),
    [
        (0.05, 0.01, 0.9, True, BETTER),
        (0.05, 0.01, 0.9, False, WORSE),
        (-0.05, 0.01, 0.9, True, WORSE),
        (0.001, 0.6, 0.01, True, SAME),
        (0.001, 0.6, 0.2, True, UNCLEAR),
        (0.001, 0.01, 0.001, True, BETTER),
        (0.0, None, None, True, ONE_MODEL),
        (None, None, None, True, NO_RESULT),
    ],
)
def test_verdicts(difference, p, p_margin, higher, verdict):
    for family in ("primary", ""):
        numbers = {"difference": difference, "p": p, "p_margin": p_margin, "family": family}
        (row,) = with_verdicts([made_up(higher_is_better=higher, **numbers)])
        assert row.verdict == verdict


def made_up(**fields):
    words = {"first": "swap", "second": "soup", "task": TASK, "metric": "exact_match"}
    defaults = {"filter": "none", "language": "", "higher_is_better": True}
    return TaskComparison(**{**words, **defaults, **fields})


def test_a_correction_turns_evidence_into_none():
    numbers = {"p": 0.03, "p_margin": 0.03, "difference": 0.1}
    for family, verdict in (("primary", UNCLEAR), ("", BETTER)):
        rows = with_verdicts([made_up(family=family, **numbers)] * 2)
        assert [row.verdict for row in rows] == [verdict, verdict]


def test_the_margin_is_the_studys(tmp_path):
    for margin, verdict in ((30.0, SAME), (0.1, UNCLEAR)):
        study = study_of(baseline=["soup"], report={"margin": margin})
        run = write_run(tmp_path / str(margin), study, lambda *_: 4.5, items=60)
        assert one(compared(run), task=TASK)["verdict"] == verdict
