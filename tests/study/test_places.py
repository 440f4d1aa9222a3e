"""Experts as names or places, from the file they stand in; recipes that work as they are."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ablations.study.files import read_study
from ablations.study.planning import StudyPlan, plan_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_yaml

NAMES = ("base", "math", "swahili")
RECIPE = {
    "merge_method": "layer_swap",
    "models": [
        {"model": "./math", "parameters": {"role": "task"}},
        {"model": "./swahili", "parameters": {"role": "language"}},
    ],
    "base_model": "./base",
    "parameters": {"bottom_layers": 1, "top_layers": 1},
    "dtype": "float32",
}


@pytest.fixture
def work(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with experts and tasks in `mine`; the working directory is another one."""
    for name in (*NAMES, "tasks"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).symlink_to(models / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def plan(path: Path, experts: Path | None = None, /, **changes: Any) -> StudyPlan:
    document = study_document(
        evaluate={"tasks": ["words"], "include_path": "tasks"},
        vary={"bottom_layers": [1]},
        **changes,
    )
    document = {key: value for key, value in document.items() if value is not None}
    return plan_study(read_study(write_yaml(path, document)), experts, backend="hf")


def problem(path: Path, experts: Path | None = None, /, **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        plan(path, experts, **changes)
    return caught.value.message


POOLS = {"base": "./base", "task": "./math", "language": "./swahili"}


def test_experts_of_a_study_are_paths_from_its_folder(work: Path, models: Path) -> None:
    found = plan(work / "mine" / "study.yml", experts=POOLS)
    assert {each.folder for each in found.experts.values()} == {models / name for name in NAMES}
    assert found.study.evaluate.include_path == str(work / "mine" / "tasks")


def test_experts_of_an_experts_file_are_paths_from_its_folder(work: Path, models: Path) -> None:
    places = {"math": "math", "base": "./base", "swahili": f"{work}/mine/swahili"}
    file = write_yaml(work / "mine" / "experts.yml", {"experts": places, "include_path": "tasks"})
    found = plan(work / "study.yml", file)
    assert found.experts["math"].folder == models / "math"
    assert found.study.evaluate.include_path == str(work / "mine" / "tasks")


def test_the_working_directory_comes_second(work: Path, models: Path) -> None:
    for name in (*NAMES, "tasks"):
        shutil.copytree(work / "mine" / name, work / "elsewhere" / name)
    found = plan(work / "study.yml", experts=POOLS)
    assert found.experts["./math"].folder == work / "elsewhere" / "math"
    found = plan(work / "mine" / "study.yml", experts=POOLS)
    assert found.experts["./math"].folder == models / "math"


def test_an_error_names_both_folders_and_no_download(work: Path) -> None:
    (work / "mine" / "experts").mkdir()
    pools = {"base": "./base", "task": ["./mth", "experts/math"], "language": "./swahili"}
    told = problem(work / "mine" / "study.yml", experts=pools)
    looked = f"(looked in {work}/mine and in the current directory, {work}/elsewhere)"
    assert f"./mth: no such folder; did you mean 'math'? {looked}" in told
    assert f"experts/math: no such folder {looked}" in told
    assert "hf download" not in told
    told = problem(work / "study.yml", experts=POOLS)
    assert "evaluate.include_path: tasks: no such folder (looked in" in told
    (work / "taskz").mkdir()
    told = problem(work / "study.yml", experts=POOLS)
    assert "evaluate.include_path: tasks: no such folder; did you mean 'taskz'? (look" in told


def test_a_name_without_a_place_asks_for_one(work: Path) -> None:
    told = problem(work / "mine" / "study.yml", experts={**POOLS, "task": "math"})
    assert "the study does not say where math is: add --experts FILE, or write a folder" in told


@pytest.mark.parametrize("place", ["study.yml", "deeper/study.yml"])
def test_a_working_recipe_is_taken_as_it_is(work: Path, models: Path, place: str) -> None:
    recipe = write_yaml(work / "mine" / "swap.yml", RECIPE)
    path = work / "mine" / place
    path.parent.mkdir(exist_ok=True)
    (work / "elsewhere" / "tasks").symlink_to(models / "tasks")
    named = os.path.relpath(recipe, path.parent)
    baseline = ["base", "task_expert", "language_expert", "soup"]
    found = plan(path, recipe=named, experts=None, baseline=baseline)
    assert [cell.kind for cell in found.cells] == [*baseline, "recipe"]
    merge = found.cells[-1].merge
    assert merge["base_model"] == str(models / "base")
    assert [each["model"] for each in merge["models"]] == [
        str(models / "math"),
        str(models / "swahili"),
    ]
    # The models are those of the study that says the same by roles.
    roles = {**RECIPE, "models": [{"model": "task"}, {"model": "language"}], "base_model": "base"}
    same = plan(work / "mine" / "b.yml", recipe=roles, experts=POOLS, baseline=baseline)
    assert [c.weights_key for c in same.cells] == [c.weights_key for c in found.cells]


def test_roles_of_a_recipe_can_vary(work: Path, models: Path) -> None:
    (work / "mine" / "math_2").symlink_to(models / "math_2")
    document = study_document(
        recipe=RECIPE,
        vary={"experts.task": ["./math", "./math_2"]},
        evaluate={"tasks": ["words"], "include_path": "tasks"},
        baseline=["task_expert"],
    )
    del document["experts"]
    path = write_yaml(work / "mine" / "study.yml", document)
    found = plan_study(read_study(path), None, backend="hf")
    assert [cell.experts["task"] for cell in found.cells] == ["./math", "./math_2"] * 2


def test_recipes_of_other_methods_and_one_expert_need_no_roles(work: Path, models: Path) -> None:
    revert = {
        "merge_method": "delta_revert",
        "models": [{"model": "./math"}],
        "base_model": "./base",
        "dtype": "float32",
    }
    path = work / "mine" / "study.yml"
    found = plan(path, recipe=revert, experts=None, baseline=["base", "task_expert"])
    assert found.cells[-1].experts == {"task": "./math", "base": "./base"}
    linear = {
        "merge_method": "linear",
        "models": [{"model": f"./{name}", "parameters": {"weight": 1}} for name in NAMES],
        "dtype": "float32",
    }
    document = study_document(
        recipe=linear,
        vary={"models.0.parameters.weight": [0, 1]},
        evaluate={"tasks": ["words"], "include_path": "tasks"},
        baseline=[],
    )
    del document["experts"]
    found = plan_study(read_study(write_yaml(path, document)), None, backend="hf")
    assert [cell.merge["models"][0]["parameters"]["weight"] for cell in found.cells] == [0, 1]
    assert {each["model"] for each in found.cells[0].merge["models"]} == {
        str(models / name) for name in NAMES
    }


def test_several_models_of_a_role_stay_in_the_recipe(work: Path, models: Path) -> None:
    (work / "mine" / "math_2").symlink_to(models / "math_2")
    more = {"model": "./math_2", "parameters": {"role": "task"}}
    soup = {**RECIPE, "models": [*RECIPE["models"], more]}
    path = work / "mine" / "study.yml"
    found = plan(path, recipe=soup, experts=None, baseline=["base"])
    assert len(found.cells[-1].merge["models"]) == 3
    told = problem(path, recipe=soup, experts=None, baseline=["task_expert"])
    assert "experts.task is missing: name an expert" in told
    found = plan(path, recipe=soup, experts={"task": "./math"}, baseline=["task_expert"])
    assert [cell.kind for cell in found.cells] == ["task_expert", "recipe"]


def test_a_shipped_experts_file_means_the_working_directory(
    work: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablations.study.experts import find_experts_file

    (work / "elsewhere" / "runs" / "pocket").mkdir(parents=True)
    for name, source in (("base", "base"), ("task", "math"), ("language", "swahili")):
        (work / "elsewhere" / "runs" / "pocket" / name).symlink_to(models / source)
    (work / "elsewhere" / "runs" / "pocket" / "tasks").symlink_to(models / "tasks")
    found = plan(work / "study.yml", find_experts_file("pocket"))
    assert found.experts["math"].folder == models / "math"


def test_the_folder_of_a_study_is_no_part_of_what_identifies_a_score(work: Path) -> None:
    keys = []
    for place in ("mine", "moved"):
        if place == "moved":
            (work / "mine").rename(work / "moved")
        found = plan(work / place / "study.yml", experts=POOLS)
        keys.append([cell.records for cell in found.cells])
    assert keys[0] == keys[1]
