"""Studies of recipes that go by the experts' changes: planned without reading weights, then run."""

import pytest

from ablations.runner.run import RunOptions, run_study
from ablations.runs.run import load_run
from ablations.study.describe import describe_study_plan
from layerswap_method.deltas import pair as deltas
from layerswap_method.methods.table import merge_models
from tests.runner.fakes import scores_by_label
from tests.standins.merging import tensors_of
from tests.standins.oracle import mean_change, stored
from tests.standins.studies import study_document, write_expert, write_yaml

MODULE = {"placement": "delta_share", "delta_threshold": 0.1, "delta_unit": "module"}
RECIPE = study_document()["recipe"] | {"parameters": {}}
SWAPS = {
    "recipe": RECIPE,
    "vary": [
        {"placement": "soup"},
        {"placement": "soup", "weighting": "magnitude"},
        {"placement": "delta_share", "delta_threshold": 0.1},
        MODULE,
    ],
    "baseline": ["soup", "weighted_soup"],
}
REVERTS = {
    "recipe": RECIPE | {"merge_method": "delta_revert", "models": [{"model": "task"}]},
    "baseline": ["task_expert"],
}


@pytest.fixture
def measured(plan, tuned):
    """Return a function that plans a study of fine-tuned experts."""
    return lambda file=None, **changes: plan(file or tuned / "experts.yml", **changes)


@pytest.fixture
def unread(monkeypatch):
    def refuse(*given):
        raise AssertionError("a plan opens no pair")

    monkeypatch.setattr(deltas, "open_pair", refuse)


def test_planning_reads_no_change(measured, unread):
    found = measured(how={"dry": True}, **SWAPS)
    text = describe_study_plan(found, found.cells, materialize=False)
    assert text.count("▒▒▒▒") == 3  # weighted_soup, and two soups as recipes
    assert text.count("(by the experts' changes, measured at the merge)") == 2
    assert "checkpoints written to disk: 0" in text


def test_the_weighted_soup_is_the_papers(tuned, measured):
    found = measured(**SWAPS, experts={"task": ["math"], "language": ["swahili", "telugu"]})
    cells = [cell for cell in found.cells if cell.kind == "weighted_soup"]
    pairs = ["weighted soup math+swahili", "weighted soup math+telugu"]
    assert [cell.label for cell in cells] == pairs
    experts = {expert.reference: expert for expert in found.experts.values()}
    base = stored(tuned / "base")
    for cell in cells:
        assert cell.experts["base"] == "base"
        tensors = tensors_of(merge_models(cell.recipe, experts))
        pair = [stored(tuned / cell.experts[role]) for role in ("task", "language")]
        one, other = (1 / mean_change(expert, base) for expert in pair)
        for name, tensor in tensors.items():
            exact = (one * pair[0][name].double() + other * pair[1][name].double()) / (one + other)
            error = (tensor.double() - exact).abs()
            assert bool((error <= exact.abs() * 2**-24 + 2e-6).all()), name


def test_keys_tell_what_matters(tuned, measured, tmp_path):
    keys = {cell.label: cell.weights_key for cell in measured(**SWAPS).cells}
    same = {label for label, key in keys.items() if key == keys["weighted soup"]}
    assert same == {"weighted soup", "layer swap soup weighting=magnitude"}
    assert len(set(keys.values())) == len(keys) - 1
    # The numbers follow from base and experts: another base is another model.
    other = write_expert(tmp_path / "base", 9)
    written = (tuned / "experts.yml").read_text().replace(str(tuned / "base"), str(other))
    (tmp_path / "other.yml").write_text(written)
    again = measured(tmp_path / "other.yml", **SWAPS)
    changed = {cell.label: cell.weights_key for cell in again.cells}
    assert changed["soup"] == keys["soup"]
    assert changed["weighted soup"] != keys["weighted soup"]
    assert changed["layer swap delta_share delta_threshold=0.1"] not in keys.values()


def test_a_base_that_is_an_expert_is_one_error(tuned, problem, tmp_path):
    text = (tuned / "experts.yml").read_text()
    file = tmp_path / "same.yml"
    file.write_text(text.replace(str(tuned / "base"), str(tuned / "math")))
    told = problem(file, **{**SWAPS, "vary": [{"placement": "soup"}]})
    assert "is also the task expert" in told
    assert "(cell weighted_soup)" in told


def test_reverts_are_streamed_and_planned_without_weights(measured, unread):
    settings = [
        {"bottom_layers": 0},
        {"revert_layers": "0,3"},
        {"bottom_layers": 1, "top_layers": 1},
        {"keep_fraction": 0.5},
        {"threshold": 0.1},
        {"keep_fraction": 1.0},
        {"threshold": 0.0, "top_layers": 1, "bottom_layers": 1},
    ]
    found = measured(**REVERTS, vary=settings)
    text = describe_study_plan(found, found.cells, materialize=False)
    assert "models to load: 4" in text
    assert "checkpoints written to disk: 0" in text
    keys = [cell.weights_key for cell in found.cells]
    assert keys[0] == keys[1] == keys[6], "nothing goes back: the expert itself"
    assert keys[2] == keys[3] == keys[7], "the same layers, named in three ways"
    assert len(set(keys)) == 4


@pytest.fixture
def both_ways(tuned, tmp_path):
    """Return a function that runs a study live and from checkpoints: provenance by label."""

    def call(**changes):
        study, found = write_yaml(tmp_path / "study.yml", study_document(**changes)), []
        for name in ("live", "cold"):
            how = {"experts": tuned / "experts.yml", "backend": "hf", "out": tmp_path / name}
            options = RunOptions(**how, materialize=name == "cold")
            assert not run_study(str(study), options).summary.failed
            cells = load_run(tmp_path / name).cells
            found.append({cell.label: cell.task_records[0].provenance for cell in cells})
        assert scores_by_label(tmp_path / "live") == scores_by_label(tmp_path / "cold")
        return found

    return call


@pytest.mark.slow
def test_reverts_give_the_same_records_live_and_from_checkpoints(both_ways):
    settings = [{"keep_fraction": 0.5}, {"threshold": 0.1, "revert_modules": "attention"}]
    live, cold = both_ways(**{**REVERTS, "baseline": []}, vary=settings)
    assert len(live) == 2
    for label in live:
        assert (live[label]["weights"], cold[label]["weights"]) == ("streamed", "checkpoint")
        assert live[label]["measured"] == cold[label]["measured"]
        assert 0 < live[label]["measured"]["kept"]["fraction"] < 1


@pytest.mark.slow
def test_a_live_engine_and_checkpoints_give_the_same_records(both_ways):
    found = both_ways(**{**SWAPS, "baseline": ["weighted_soup"], "vary": [MODULE]})
    for kind in ("weights", "units"):
        measured = [cell["measured"] for cells in found for cell in cells.values()]
        one, other = (each[kind] for each in measured if kind in each)
        assert one == other
    rows = found[0]["weighted soup"]["measured"]["weights"]
    assert [(r["model"], r["role"]) for r in rows] == [("math", "task"), ("swahili", "language")]
