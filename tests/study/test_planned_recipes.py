"""A plan names what is wrong with the study's recipe before anything runs."""

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from ablations.study.planning import StudyPlan
from tests.standins.studies import study_document, write_yaml
from tests.study.test_planning import plan, problems

MODELS = [{"model": "task"}, {"model": "language"}]
RECIPES = [  # one of each kind: the methods' own tests have the others
    ({"models": None}, "layer_swap recipe"),
    (
        {"tokenizer": {"source": "base", "sorce": 1}},
        "tokenizer.sorce: unknown key; did you mean 'source'?",
    ),
    ({"merge_method": "layerswap"}, "merge_method is 'layerswap'; did you mean 'layer_swap'?"),
    ({"merge_method": "linear", "parameters": [1]}, "linear recipe: parameters: must be a block"),
    ({"merge_method": "swapping"}, "merge_method is 'swapping'; mergekit has "),
    (
        {"merge_method": "delta_revert", "models": MODELS[:1], "parameters": {"keep_fracton": 0.5}},
        "parameters.keep_fracton: unknown key; did you mean 'keep_fraction'?",
    ),
    (
        {"merge_method": "delta_revert", "models": MODELS[:1], "parameters": {"bottom_layers": 9}},
        "9 + 0 = 9 is more than the model's 4 layers",
    ),
]


@pytest.mark.parametrize(("changes", "message"), RECIPES)
def test_a_recipe_that_mergekit_cannot_take_is_told_by_the_plan(
    tmp_path: Path, experts: Path, changes: dict[str, object], message: str
) -> None:
    recipe = {**study_document()["recipe"], **changes}
    recipe = {key: value for key, value in recipe.items() if value is not None}
    assert message in problems(tmp_path, experts, recipe=recipe, vary={"out_dtype": ["float32"]})


@pytest.mark.parametrize("method", ["layer_swap", "linear"])
def test_a_model_that_is_no_text_says_what_to_write(
    tmp_path: Path, experts: Path, method: str
) -> None:
    nested = {"model": {"path": "task"}}
    recipe = study_document()["recipe"] | {"merge_method": method, "models": [{"model": nested}]}
    told = problems(tmp_path, experts, recipe=recipe, vary=None)
    assert "model is {'model': {'path': 'task'}}; write task, language, base or the name" in told


def test_a_model_of_the_recipe_that_is_no_expert_says_what_to_write(
    tmp_path: Path, experts: Path
) -> None:
    recipe = study_document()["recipe"] | {"models": [{"model": "org/math"}, MODELS[1]]}
    told = problems(tmp_path, experts, recipe=recipe)
    assert "org/math: no such folder" in told
    assert "a model of the recipe, which also knows base, task, language" in told


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_damaged_adapter_is_told_by_the_plan(
    tmp_path: Path, models: Path, experts: Path, file: str
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file({"x": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    (adapter / file).write_text("{")
    document = yaml.safe_load(experts.read_text())
    document["experts"]["math"] = f"{models / 'base'}+{adapter}"
    told = problems(tmp_path, write_yaml(tmp_path / "damaged.yml", document))
    assert f"incompatible experts: {adapter}" in told


def test_a_varied_merge_method_is_checked_like_a_written_one(tmp_path: Path, experts: Path) -> None:
    told = problems(tmp_path, experts, vary={"merge_method": ["linaer", "layer_swap"]})
    assert "merge_method is 'linaer'" in told
    assert "(cell merge_method=linaer)" in told


def test_a_recipe_file_gives_the_keys_of_the_recipe_itself(tmp_path: Path, experts: Path) -> None:
    recipe = study_document()["recipe"]
    keys = words_of(plan(tmp_path, experts))
    write_yaml(tmp_path / "swap.yml", recipe)
    assert words_of(plan(tmp_path, experts, recipe="swap.yml")) == keys
    write_yaml(tmp_path / "swap.yml", {**recipe, "dtype": "bfloat16"})
    changed = words_of(plan(tmp_path, experts, recipe="swap.yml"))
    assert set(changed) & set(keys) == set(keys[:2])  # the unmerged models are what they were


def words_of(found: StudyPlan) -> list[str]:
    return [cell.records["words"] for cell in found.cells]
