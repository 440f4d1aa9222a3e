"""Studies of recipes that go by the experts' changes: planned without reading weights, then run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablations.runner import records
from ablations.runner.run import RunOptions, run_study
from ablations.study.describe import describe_plan
from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.deltas import pair as deltas
from layerswap_method.errors import InputError
from layerswap_method.methods.read import recipe_by_files
from tests.runner.fakes import scores_by_label
from tests.standins.merging import tensors_of
from tests.standins.oracle import mean_change, stored
from tests.standins.studies import study_document, write_expert, write_yaml


def document(**changes: Any) -> dict[str, Any]:
    recipe = {
        "merge_method": "layer_swap",
        "models": [{"model": "task"}, {"model": "language"}],
        "base_model": "base",
        "parameters": {},
        "dtype": "float32",
    }
    settings = [
        {"placement": "soup"},
        {"placement": "soup", "weighting": "magnitude"},
        {"placement": "delta_share", "delta_threshold": 0.1},
        {"placement": "delta_share", "delta_threshold": 0.1, "delta_unit": "module"},
    ]
    given = {"recipe": recipe, "vary": settings, "baseline": ["soup", "weighted_soup"], **changes}
    return study_document(**given)


def planned(tmp_path: Path, tuned: Path, *, dry: bool = False, **changes: Any) -> StudyPlan:
    path = write_yaml(tmp_path / "study.yml", document(**changes))
    return plan_study(read_study(path), tuned / "experts.yml", backend="hf", dry=dry)


def test_planning_reads_no_change(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a plan opens no pair")

    monkeypatch.setattr(deltas, "open_pair", refuse)
    found = planned(tmp_path, tuned, dry=True)
    text = describe_plan(found, materialize=False)
    assert text.count("▒▒▒▒") == 3  # weighted_soup, and two soups as recipes
    assert text.count("(by the experts' changes, measured at the merge)") == 2
    assert "checkpoints written to disk: 0" in text


def test_the_weighted_soup_is_the_papers(tuned: Path, tmp_path: Path) -> None:
    found = planned(tmp_path, tuned, experts={"task": ["math"], "language": ["swahili", "telugu"]})
    cells = [cell for cell in found.cells if cell.kind == "weighted_soup"]
    assert [cell.label for cell in cells] == [
        "weighted_soup math+swahili",
        "weighted_soup math+telugu",
    ]
    experts = {expert.reference: expert for expert in found.experts.values()}
    base = stored(tuned / "base")
    for cell in cells:
        assert cell.experts["base"] == "base"
        tensors = tensors_of(recipe_by_files(cell.merge).merge(experts))
        pair = [stored(tuned / cell.experts[role]) for role in ("task", "language")]
        one, other = (1 / mean_change(expert, base) for expert in pair)
        for name, tensor in tensors.items():
            exact = (one * pair[0][name].double() + other * pair[1][name].double()) / (one + other)
            error = (tensor.double() - exact).abs()
            assert bool((error <= exact.abs() * 2**-24 + 2e-6).all()), name


def test_keys_tell_what_matters(tuned: Path, tmp_path: Path) -> None:
    found = planned(tmp_path, tuned)
    keys = {cell.label: cell.weights_key for cell in found.cells}
    same = {label for label, key in keys.items() if key == keys["weighted_soup"]}
    assert same == {"weighted_soup", "placement=soup weighting=magnitude"}
    assert len(set(keys.values())) == len(keys) - 1
    # The numbers follow from base and experts: another base is another model.
    other = write_expert(tmp_path / "base", 9)
    written = (tuned / "experts.yml").read_text().replace(str(tuned / "base"), str(other))
    (tmp_path / "experts.yml").write_text(written)
    study = read_study(tmp_path / "study.yml")
    again = plan_study(study, tmp_path / "experts.yml", backend="hf")
    changed = {cell.label: cell.weights_key for cell in again.cells}
    assert changed["soup"] == keys["soup"]
    assert changed["weighted_soup"] != keys["weighted_soup"]
    assert changed["placement=delta_share delta_threshold=0.1"] not in keys.values()


def test_counts_of_another_depth_leave_soups_alone(tuned: Path, tmp_path: Path) -> None:
    found = planned(tmp_path, tuned, reference_layers=32)
    assert [set(cell.merge["parameters"]) for cell in found.cells[2:4]] == [
        {"placement"},
        {"placement", "weighting"},
    ]


def test_a_base_that_is_an_expert_is_one_error(tuned: Path, tmp_path: Path) -> None:
    text = (tuned / "experts.yml").read_text()
    (tmp_path / "experts.yml").write_text(text.replace(str(tuned / "base"), str(tuned / "math")))
    study = read_study(write_yaml(tmp_path / "study.yml", document(vary=[{"placement": "soup"}])))
    with pytest.raises(InputError, match=r"is also the task expert.*\(cell weighted_soup\)"):
        plan_study(study, tmp_path / "experts.yml", backend="hf")


def reverts(settings: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    recipe = {
        "merge_method": "delta_revert",
        "models": [{"model": "task"}],
        "base_model": "base",
        "dtype": "float32",
    }
    return document(recipe=recipe, baseline=["task_expert"], vary=settings, **changes)


def test_reverts_are_streamed_and_planned_without_weights(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a plan opens no pair")

    monkeypatch.setattr(deltas, "open_pair", refuse)
    settings = [
        {"bottom_layers": 0},
        {"revert_layers": "0,3"},
        {"bottom_layers": 1, "top_layers": 1},
        {"keep_fraction": 0.5},
        {"threshold": 0.1},
        {"keep_fraction": 1.0},
        {"threshold": 0.0, "top_layers": 1, "bottom_layers": 1},
    ]
    study = write_yaml(tmp_path / "reverts.yml", reverts(settings))
    found = plan_study(read_study(study), tuned / "experts.yml", backend="hf")
    text = describe_plan(found, materialize=False)
    assert "models to load: 4" in text
    assert "checkpoints written to disk: 0" in text
    keys = [cell.weights_key for cell in found.cells]
    assert keys[0] == keys[1] == keys[6], "nothing goes back: the expert itself"
    assert keys[2] == keys[3] == keys[7], "the same layers, named in three ways"
    assert len(set(keys)) == 4


def both_ways(study: Path, tuned: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Run a study live and from checkpoints; return the provenance of its cells by label."""
    for name in ("live", "cold"):
        options = RunOptions(
            experts=tuned / "experts.yml",
            out=tmp_path / name,
            backend="hf",
            materialize=name == "cold",
        )
        assert not run_study(str(study), options).summary.failed
    assert scores_by_label(tmp_path / "live") == scores_by_label(tmp_path / "cold")
    return {
        name: {cell.label: cell.provenance for cell in records.load_run(tmp_path / name).cells}
        for name in ("live", "cold")
    }


@pytest.mark.slow
def test_reverts_give_the_same_records_live_and_from_checkpoints(
    tuned: Path, tmp_path: Path
) -> None:
    settings = [{"keep_fraction": 0.5}, {"threshold": 0.1, "revert_modules": "attention"}]
    study = write_yaml(tmp_path / "reverts.yml", {**reverts(settings), "baseline": []})
    found = both_ways(study, tuned, tmp_path)
    assert len(found["live"]) == 2
    for label, live in found["live"].items():
        cold = found["cold"][label]
        assert (live["weights"], cold["weights"]) == ("streamed", "checkpoint")
        assert live["measured"] == cold["measured"]
        assert 0 < live["measured"]["kept"]["fraction"] < 1


@pytest.mark.slow
def test_a_live_engine_and_checkpoints_give_the_same_records(tuned: Path, tmp_path: Path) -> None:
    module = {"placement": "delta_share", "delta_threshold": 0.1, "delta_unit": "module"}
    given = document(baseline=["weighted_soup"], vary=[module])
    study = write_yaml(tmp_path / "small.yml", given)
    found = both_ways(study, tuned, tmp_path)
    for kind in ("weights", "units"):
        numbers = [
            cell["measured"][kind]
            for name in ("live", "cold")
            for cell in found[name].values()
            if kind in cell["measured"]
        ]
        assert len(numbers) == 2
        assert numbers[0] == numbers[1]
    rows = found["live"]["weighted_soup"]["measured"]["weights"]
    assert [(row["model"], row["role"]) for row in rows] == [
        ("math", "task"),
        ("swahili", "language"),
    ]
