"""Checkpoints whose files, index or embeddings are not what their config says: one message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.mergekit_plugin.conftest import Experts, Merge, save_llama
from tests.mergekit_plugin.test_errors import refused

SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def odd(experts: Experts, tmp_path: Path) -> Path:
    """A copy of the language expert, to be damaged."""
    return shutil.copytree(experts.language, tmp_path / "odd")


def recipe_with(experts: Experts, odd: Path) -> dict[str, Any]:
    recipe = experts.recipe()
    recipe["models"][1]["model"] = str(odd)
    return recipe


def rewrite(
    folder: Path, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(edit(tensors), file, metadata={"format": "pt"})


def without_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def test_one_expert_without_its_output_embedding(experts: Experts, merge: Merge, odd: Path) -> None:
    rewrite(odd, without_head)
    refused(merge(recipe_with(experts, odd)), f"{odd} lacks 1 tensors", "lm_head.weight")


def test_all_experts_without_an_output_embedding(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    recipe = experts.recipe()
    for name, entry in zip(("task", "language"), recipe["models"], strict=True):
        folder = shutil.copytree(getattr(experts, name), tmp_path / name)
        rewrite(folder, without_head)
        entry["model"] = str(folder)
    recipe["base_model"] = recipe["models"][0]["model"]
    refused(
        merge(recipe),
        "task holds no lm_head.weight, and its config does not tie it to model.embed_tokens.weight",
    )


def test_tied_experts_may_store_the_output_embedding_once_or_twice(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    task = save_llama(tmp_path / "tied" / "task", 1, tie_word_embeddings=True)
    other = save_llama(tmp_path / "tied" / "language", 2, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(other / "model.safetensors")
    rewrite(other, lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].clone()})
    recipe = experts.recipe(base_model=str(task))
    recipe["models"][0]["model"], recipe["models"][1]["model"] = str(task), str(other)
    result = merge(recipe)
    assert result.exit_code == 0, result.output
    merged = load_file(result.folder / "model.safetensors")
    assert torch.equal(merged["lm_head.weight"], merged["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "has no weight_map with tensors; download it again"),
        ({}, "has no weight_map with tensors"),
        ({"weight_map": {}}, "has no weight_map with tensors"),
        ({"weight_map": ["a"]}, "has no weight_map with tensors"),
        ({"weight_map": {"a": 3}}, "places a in 3, which is no file name"),
        ({"weight_map": {"a": SHARD}}, f"names 1 tensors that {SHARD} does not hold: a"),
    ],
)
def test_an_index_that_is_none(
    experts: Experts, merge: Merge, odd: Path, index: Any, message: str
) -> None:
    (odd / "model.safetensors").rename(odd / SHARD)
    (odd / INDEX).write_text(json.dumps(index))
    refused(merge(recipe_with(experts, odd)), message)


def test_an_index_that_omits_a_tensor_of_its_shard(
    experts: Experts, merge: Merge, odd: Path
) -> None:
    (odd / "model.safetensors").rename(odd / SHARD)
    omitted = "model.layers.0.mlp.up_proj.weight"
    names = [name for name in load_file(odd / SHARD) if name != omitted]
    (odd / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, SHARD)}))
    refused(merge(recipe_with(experts, odd)), f"{odd} lacks 1 tensors", omitted)


def test_an_index_goes_before_a_single_file_as_in_mergekit(
    experts: Experts, merge: Merge, odd: Path
) -> None:
    (odd / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    refused(merge(recipe_with(experts, odd)), "1 of 1 shards are missing")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.float8_e4m3fn])
def test_weights_in_integers_or_small_floats(
    experts: Experts, merge: Merge, odd: Path, dtype: torch.dtype
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(odd, lambda tensors: {**tensors, name: tensors[name].to(dtype)})
    refused(merge(recipe_with(experts, odd)), "stores weights as ", "(quantised)")


def test_integers_that_are_buffers_are_no_quantised_weights(
    experts: Experts, merge: Merge, odd: Path
) -> None:
    buffers = {
        "model.position_ids": torch.arange(8)[None],
        "model.counted": torch.tensor(3),
    }
    rewrite(odd, lambda tensors: {**tensors, **buffers})
    result = merge(recipe_with(experts, odd))
    assert "quantised" not in result.output
