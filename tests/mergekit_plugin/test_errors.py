"""Bad recipes and checkpoints, as the user of mergekit-yaml meets them: one message, exit 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from layerswap_method.errors import InputError, first_line, nearest
from tests.mergekit_plugin.conftest import Experts, Merge, Refused, save_llama


def with_models(experts: Experts, task: dict[str, Any], language: dict[str, Any]) -> Any:
    return experts.recipe(
        models=[
            {"model": str(experts.task), "parameters": task},
            {"model": str(experts.language), "parameters": language},
        ]
    )


TASK, LANGUAGE = {"role": "task"}, {"role": "language"}

PARAMETERS = [
    ({"botom_layers": 2}, "unknown parameter 'botom_layers'; did you mean 'bottom_layers'?"),
    ({"bottom_layers": 2.5}, "bottom_layers is 2.5; it must be a whole number"),
    ({"bottom_layers": True}, "bottom_layers is True; it must be a whole number"),
    ({"top_layers": -1}, "top_layers is -1; it must be 0 or more"),
    ({"bottom_layers": [0, 5]}, "bottom_layers is a list or filter, which mergekit interpolates"),
    ({"bottom_layers": 6, "top_layers": 3}, "6 + 3 = 9 is more than the model's 8 layers"),
    ({"placement": "midle"}, "placement is 'midle'; it must be"),
    ({"placement": "midle"}, "did you mean 'middle'?"),
    ({"placement": "layers"}, "placement: layers needs language_layers, such as '0-4,30,31'"),
    ({"language_layers": "0-1"}, "language_layers has no effect with placement: outer"),
    (
        {"placement": "layers", "language_layers": [0, 1, 7]},
        'language_layers is a list, which mergekit interpolates; write a string: "0,1,7"',
    ),
    (
        {"placement": "layers", "language_layers": 3},
        'language_layers is 3; it must be a string in quotes, such as "3"',
    ),
    ({"placement": "layers", "language_layers": "0-8"}, "layer 8 does not exist"),
    (
        {"placement": "layers", "language_layers": "0", "bottom_layers": 1},
        "bottom_layers has no effect with placement: layers",
    ),
    ({"task_weight": 0, "language_weight": 0}, "task_weight and language_weight are both 0"),
    ({"task_weight": -1}, "task_weight is -1"),
    ({"role": "task"}, "role belongs under the parameters: of each model"),
    ({"non_layer": "avg"}, "non_layer is 'avg'; it must be"),
    ({"layer_swap_source": "task"}, "unknown parameter 'layer_swap_source'"),
    ({"layer_swap_plan": "llllllll"}, "unknown parameter 'layer_swap_plan'"),
    (
        {"placement": "soup", "bottom_layers": 5, "top_transition": 1},
        "bottom_layers and top_transition have no effect with placement: soup; every layer is",
    ),
    (
        {"placement": "delta_share", "top_layers": 1},
        "top_layers has no effect with placement: delta_share; the experts' changes decide",
    ),
    (
        {"placement": "delta_share", "swap_modules": "mlp"},
        "swap_modules: mlp has no effect with placement: delta_share; drop it (delta_unit: module)",
    ),
    ({"placement": "delta_share", "delta_blend": 1.5}, "delta_blend is 1.5"),
    (
        {"placement": "delta_share", "delta_blend": 1, "task_weight": 0},
        "delta_blend is 1.0 and the weight of the other expert 0: nothing to average",
    ),
    ({"delta_unit": "module"}, "delta_unit has no effect with placement: outer; write placement"),
    ({"delta_blend": 0.5}, "delta_blend has no effect with placement: outer"),
]


@pytest.mark.parametrize(("parameters", "message"), PARAMETERS)
def test_parameters(
    experts: Experts, refused: Refused, parameters: dict[str, Any], message: str
) -> None:
    refused(experts.recipe(parameters=parameters), message)


ROLES = [
    ({}, LANGUAGE, "has no role; write role: task or role: language"),
    ({"rol": "task"}, LANGUAGE, "unknown parameter 'rol'; did you mean 'role'?"),
    ({"role": "tsk"}, LANGUAGE, "role is 'tsk'; it must be one of task, language; did you"),
    (TASK, TASK, "models has no model with role: language"),
    (LANGUAGE, LANGUAGE, "models has no model with role: task"),
    ({"role": "task", "weight": -1}, LANGUAGE, "weight is -1; it must be 0 or more"),
    ({"role": "task", "weight": [1, 2]}, LANGUAGE, "weight is a list or filter, which mergekit"),
    ({"role": "task", "weight": 0}, LANGUAGE, "the weights of role task sum to 0"),
    ({"role": "task", "top_layers": 2}, LANGUAGE, "top_layers belongs under the recipe's top"),
]


@pytest.mark.parametrize(("task", "language", "message"), ROLES)
def test_roles(
    experts: Experts, refused: Refused, task: dict[str, Any], language: dict[str, Any], message: str
) -> None:
    refused(with_models(experts, task, language), message)


def test_every_problem_is_named_at_once(experts: Experts, refused: Refused) -> None:
    recipe = with_models(experts, {"role": "tsk"}, {})
    recipe |= {"parameters": {"botom_layers": 1, "seed": 1.5}, "tokeniser": "base"}
    refused(
        recipe,
        "5 problems",
        "unknown key 'tokeniser', which mergekit ignores; did you mean 'tokenizer",
        "did you mean 'bottom_layers'?",
        "seed is 1.5",
        "role is 'tsk'",
        "has no role",
    )


def test_a_missing_base_model(experts: Experts, refused: Refused) -> None:
    recipe = experts.recipe()
    del recipe["base_model"]
    refused(recipe, "base_model is missing", f"write base_model: {experts.task}")


def test_a_path_that_is_not_there(experts: Experts, refused: Refused) -> None:
    recipe = experts.recipe()
    recipe["models"][0]["model"] = "/no/such/folder"
    recipe["models"][1]["model"] = "~/experts/language"
    refused(recipe, "/no/such/folder: no such folder", "mergekit does not expand ~")


def test_a_hub_id_without_a_hub(experts: Experts, refused: Refused) -> None:
    recipe = experts.recipe()
    recipe["models"][0]["model"] = "nobody/no-such-model"
    refused(recipe, "nobody/no-such-model: its config cannot be loaded")


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"vocab_size": 72},
            [
                "different vocabularies: ",
                "model.embed_tokens.weight [64, 16] against [72, 16]",
                "add tokenizer: {source: base} (or union)",
            ],
        ),
        (
            {"attention_bias": True},
            ["task lacks 32 tensors that", "model.layers.0.self_attn.k_proj.bias", "29 more"],
        ),
    ],
    ids=["vocabulary", "tensors"],
)
def test_experts_that_do_not_fit(
    experts: Experts, refused: Refused, tmp_path: Path, changes: dict[str, Any], messages: list[str]
) -> None:
    refused(experts.with_language(save_llama(tmp_path / "odd", 9, **changes)), *messages)


def test_a_pickled_checkpoint(experts: Experts, refused: Refused, tmp_path: Path) -> None:
    odd = shutil.copytree(experts.language, tmp_path / "odd")
    torch.save(load_file(odd / "model.safetensors"), odd / "pytorch_model.bin")
    (odd / "model.safetensors").unlink()
    refused(
        experts.with_language(odd), "only pickled weights (pytorch_model.bin)", "save_pretrained"
    )


def test_a_missing_or_damaged_shard(
    experts: Experts, merge: Merge, refused: Refused, tmp_path: Path
) -> None:
    odd = shutil.copytree(experts.language, tmp_path / "odd")
    names = list(load_file(odd / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    shard = (odd / "model.safetensors").rename(odd / "model-00001-of-00001.safetensors")
    (odd / "model.safetensors.index.json").write_text(json.dumps(index))
    recipe = experts.recipe()
    recipe["models"][1]["model"] = str(odd)
    assert merge(recipe).exit_code == 0
    shutil.rmtree(tmp_path / "out")
    shard.write_bytes(shard.read_bytes()[:-100])
    refused(recipe, "model-00001-of-00001.safetensors is damaged")
    shard.unlink()
    refused(recipe, "1 of 1 shards are missing")


def test_an_adapter_without_a_cache(experts: Experts, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    recipe = experts.recipe()
    recipe["models"][1]["model"] = f"{experts.base}+{tmp_path / 'adapter'}"
    refused(recipe, "add --lora-merge-cache DIR", "no readable adapter_config.json")


def test_modules_to_swap_that_the_model_lacks(
    experts: Experts, refused: Refused, tmp_path: Path
) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    folders = []
    for name in ("a", "b"):
        folders.append(tmp_path / name)
        MambaForCausalLM(
            MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=4, state_size=4)
        ).save_pretrained(folders[-1])
    recipe = {
        "merge_method": "layer_swap",
        "base_model": str(folders[0]),
        "models": [
            {"model": str(folders[0]), "parameters": TASK},
            {"model": str(folders[1]), "parameters": LANGUAGE},
        ],
        "parameters": {"bottom_layers": 1, "top_layers": 1, "swap_modules": "attention"},
    }
    refused(recipe, "swap_modules is attention, but the layers", "norm, other")


def test_other_methods_are_left_alone(experts: Experts, merge: Merge) -> None:
    recipe = experts.recipe(merge_method="linear", parameters={"weight": 1, "botom_layers": 3})
    recipe["models"] = [{"model": str(experts.task)}, {"model": str(experts.language)}]
    result = merge(recipe)
    assert result.exit_code == 0, result.output
    assert not (result.folder / "layer_swap_plan.json").exists()


def test_the_check_itself_can_pass(experts: Experts, merge: Merge) -> None:
    result = merge(experts.recipe())
    assert result.exit_code == 0, result.output
    assert (result.folder / "model.safetensors").exists()
    assert [p.name for p in result.folder.parent.iterdir()] == ["merged"]


def test_nearest_names_and_lists_of_problems() -> None:
    assert nearest("botom_layers", ["bottom_layers", "seed"]) == "; did you mean 'bottom_layers'?"
    assert nearest("MGSM", ["mgsm", "Belebele"]) == "; did you mean 'mgsm'?"
    assert nearest("belebele", ["mgsm", "Belebele"]) == "; did you mean 'Belebele'?"
    assert nearest("zzz", ["bottom_layers"]) == ""
    assert InputError.from_problems("here", ["one"]).message == "here: one"
    listed = InputError.from_problems("here", ["a", "b"]).message
    assert listed == "here: 2 problems\n  - a\n  - b"
    nested = InputError.from_problems("there", [listed, "c"]).message
    assert nested == "there: 2 problems\n  - here: 2 problems\n      - a\n      - b\n  - c"


def test_the_first_line_of_an_error_that_says_nothing_is_its_type() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(OSError(" \n")) == "OSError"
