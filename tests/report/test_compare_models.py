"""`layerswap compare`: the comparisons table over folders."""

import re
from pathlib import Path

import pytest

from ablations.report.compare_models import compare_models
from ablations.report.write import make_report
from ablations.runs.records import write_run_file
from ablations.runs.run import load_run
from ablations.statistics.as_text import points
from ablations.statistics.holm import holm
from layerswap_method.errors import InputError
from tests.report.runs import (
    TASKS,
    level,
    same_model,
    study_of,
    widest,
    write_run,
    write_single,
)
from tests.standins.command import layerswap, output_of

BASELINES = ["task_expert", "base", "soup"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    study = study_of(baseline=BASELINES, evaluate=TASKS)
    folder = tmp_path_factory.mktemp("compared")
    return write_run(folder, study, level, items=80, observed={"language_fidelity": 1.0})


def test_the_numbers_are_those_of_the_report(run):
    report = make_report(run, draw=False)
    text = " ".join(str(compare_models([f"{run.path}:layer swap", f"{run.path}:soup"])).split())
    rows = report.comparisons[report.comparisons["second"] == "soup"].to_dict("records")
    assert len(rows) == 2
    for row in rows:
        interval = f"[{points(row['low'])}, {points(row['high'])}]"
        assert f"{points(row['difference'])} {interval}" in text
    assert re.search(r"math, Swahili,.* right", text)


def test_models_are_called_by_the_shortest_names_that_tell_them_apart(run, tmp_path):
    names = [f"{run.path}:layer swap", f"{run.path}:soup"]
    assert compare_models(names).models == ("layer swap", "soup")
    folders = [str(write_single(tmp_path / name, "base")) for name in ("one", "two")]
    compared = compare_models(folders)
    assert compared.models == ("one", "two")  # both are the base
    assert compared.places == tuple(folders)


def test_the_language_of_answers_is_in_no_correction_unless_it_is_what_is_compared(run):
    names = [f"{run.path}:layer swap", f"{run.path}:soup"]
    frame = compare_models(names).comparisons
    is_language = frame["metric"] == "language_fidelity"
    assert (is_language.sum(), (~is_language).sum()) == (2, 2)
    assert frame[is_language]["p_holm"].isna().all()
    plain = frame[~is_language]
    assert plain["p_holm"].tolist() == pytest.approx(holm(plain["p"].tolist()))
    only = compare_models(names, metric="language_fidelity").comparisons
    assert only["family"].tolist() == ["primary"] * 2


def test_models_are_compared_on_the_tasks_that_both_have(tmp_path):
    more = write_single(tmp_path / "more", "base", tasks=["pocket_math_sw", "pocket_math_en"])
    less = write_single(tmp_path / "less", "soup", tasks=["pocket_math_sw"])
    for names in ([more, less], [less, more]):
        compared = compare_models([str(name) for name in names])
        assert compared.comparisons["task"].tolist() == ["pocket_math_sw"]
        assert "soup has no result for pocket_math_en, which is left out." in compared.warnings
    with pytest.raises(InputError, match="has no result for pocket_math_en; evaluate it"):
        compare_models([str(more), str(less)], ["pocket_math_en"])


def test_the_order_of_the_models_does_not_change_a_verdict(tmp_path):
    folders = []
    for kind, margin in (("base", 30.0), ("soup", 0.1)):
        study = study_of(
            baseline=[kind],
            recipe=None,
            evaluate={"tasks": ["pocket_math_sw"]},
            report={"margin": margin},
        )
        folders.append(str(write_run(tmp_path / kind, study, lambda *_: 4.5, items=60).path))
    for names in (folders, folders[::-1]):
        assert compare_models(names).comparisons["verdict"].tolist() == ["cannot tell"]


def test_a_warning_that_is_of_no_task_is_shown(tmp_path):
    base, soup = (write_single(tmp_path / kind, kind) for kind in ("base", "soup"))
    run = load_run(soup)
    evaluate = run.study.evaluate.model_copy(update={"include_path": (Path("/"),)})
    study = run.study.model_copy(update={"evaluate": evaluate})
    write_run_file(soup, run.head.model_copy(update={"study": study}))
    text = " ".join(str(compare_models([str(base), str(soup)])).split())
    assert "soup: Whether tasks have changed since this run cannot be said" in text


def test_models_of_several_cells_are_compared_over_their_pairs(nine_pairs):
    names = [f"{nine_pairs.path}:{label}" for label in ("task expert", "base")]
    (found,) = compare_models(names, ["mgsm_en"]).comparisons["difference"]
    names = [f"{nine_pairs.path}:{label}" for label in ("soup", "layer swap t_b=0 t_u=0")]
    assert compare_models(names, ["mgsm_en"])._repr_html_().count("(17 of 18 cells)") == 1
    data = make_report(nine_pairs, draw=False).observations
    means = data[data["task"] == "mgsm_en"].groupby("model")["value"].mean()
    assert found == pytest.approx(means["task expert"] - means["base"])


def test_models_of_no_finished_pair_in_common_have_no_difference(tmp_path):
    study = study_of(
        experts={"task": ["math_1", "math_2"], "language": ["swahili"]},
        baseline=["soup"],
        evaluate={"tasks": ["pocket_math_sw"]},
    )
    missing = ["soup math_1+swahili", "math_2+swahili layer swap"]
    run = write_run(tmp_path, study, level, items=20, unrun=missing)
    compared = compare_models([f"{run.path}:{label}" for label in ("layer swap", "soup")])
    assert compared.comparisons["verdict"].tolist() == ["no result"]
    assert "nan" not in f"{compared}{compared._repr_html_()}"


def test_folders_of_single_models(tmp_path):
    folders = [write_single(tmp_path / kind, kind) for kind in BASELINES]
    output = output_of("compare", *folders)
    assert widest(output.splitlines()) <= 80
    assert "corrected over 6 comparisons" in " ".join(output.split())
    assert "better" in output
    assert "worse" in output
    one = layerswap("compare", *folders[:2], "--tasks", "pocket_math_sw")
    assert "p: of no difference. " in " ".join(one.output.split()) + " "


def test_where_one_model_says_nothing_of_its_language_the_other_scores_are_compared(tmp_path):
    study = study_of(baseline=["base"], recipe=None, evaluate=TASKS)
    one = write_run(tmp_path / "base", study, level, items=80, observed={"language_fidelity": 1.0})
    text = str(compare_models([str(one.path), str(write_single(tmp_path / "soup", "soup"))]))
    assert "corrected over 2 comparisons" in " ".join(text.split())
    assert "right language" not in text


def test_models_of_the_same_weights_are_said_to_be_so(tmp_path):
    run = write_run(tmp_path, study_of(baseline=["soup"]), level, items=20)
    labels = [cell.label for cell in run.cells]
    run = same_model(run, *labels)
    assert "same weights" in str(compare_models([f"{run.path}:{label}" for label in labels]))


def test_bad_input_is_one_sentence(run, tmp_path):
    base, soup = (
        write_single(tmp_path / "base", "base"),
        write_single(tmp_path / "soup", "soup"),
    )
    few = write_single(tmp_path / "few", "soup", items=40)
    other = write_single(tmp_path / "other", "soup", tasks=["pocket_math_en"])
    cases = [
        ([base], "two or more models"),
        ([base, base], "is named twice"),
        ([base, tmp_path / "nowhere"], "no such folder"),
        ([base, run.path], "has 4 cells; name one of them"),
        ([base, tmp_path], f"is not a run folder; give one inside it: {base}, {few}, {other}"),
        ([base, f"{run.path}:soop"], "did you mean 'soup'"),
        ([base, other], "no task in common"),
        ([base, few], "bleu is of a whole corpus; evaluate both with the same --limit"),
        ([base, soup, "--tasks", "pocket_math"], "did you mean"),
        ([base, soup, "--metric", "accuracy"], "'accuracy' is not in the run; valid are "),
        ([f"{run.path}:soup", f"{run.path}:soup"], "is named twice"),
    ]
    for words, why in cases:
        result = layerswap("compare", *words)
        assert result.exit_code == 2, result.output
        assert why in " ".join(result.output.split()), result.output
    assert "math, Swahili" in str(compare_models([str(base), str(few)], ["pocket_math_sw"]))


def test_a_broken_evaluation_is_a_warning(tmp_path):
    study = study_of(baseline=["base"], recipe=None)
    broken = write_run(tmp_path / "broken", study, lambda _, __: -99.0, items=20).path
    whole = write_single(
        tmp_path / "whole", "soup", items=20, tasks=["pocket_math_sw", "pocket_math_en"]
    )
    text = str(compare_models([str(broken), str(whole)]))
    assert text.startswith("Warning: base: pocket_math_sw: every answer is wrong")
