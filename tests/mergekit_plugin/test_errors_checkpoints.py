"""Checkpoints whose files, index or embeddings are not what their config says: one message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.mergekit_plugin.conftest import Experts, Merge, Refused
from tests.standins.merging import recipe
from tests.standins.tuned import restored

SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def odd(experts: Experts, tmp_path: Path) -> Path:
    """A copy of the language expert, to be damaged."""
    return shutil.copytree(experts.language, tmp_path / "odd")


def without_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}


def test_experts_without_an_output_embedding(
    experts: Experts, refused: Refused, tmp_path: Path
) -> None:
    task = restored(experts.task, tmp_path / "task", without_head)
    language = restored(experts.language, tmp_path / "language", without_head)
    refused(experts.with_language(language), f"{language} lacks 1 tensors", "lm_head.weight")
    refused(
        recipe({"task": task, "language": language}),
        "task has no lm_head.weight, and its config does not tie it to model.embed_tokens.weight",
    )


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "has no weight_map with tensors; download it again"),
        ({}, "has no weight_map with tensors"),
        ({"weight_map": {}}, "has no weight_map with tensors"),
        ({"weight_map": ["a"]}, "has no weight_map with tensors"),
        ({"weight_map": {"a": 3}}, "places a in 3, which is not a file name"),
        ({"weight_map": {"a": SHARD}}, f"names 1 tensors that {SHARD} does not hold: a"),
    ],
)
def test_an_index_that_is_none(
    experts: Experts, refused: Refused, odd: Path, index: Any, message: str
) -> None:
    (odd / "model.safetensors").rename(odd / SHARD)
    (odd / INDEX).write_text(json.dumps(index))
    refused(experts.with_language(odd), message)


def test_an_index_that_omits_a_tensor_of_its_shard(
    experts: Experts, refused: Refused, odd: Path
) -> None:
    (odd / "model.safetensors").rename(odd / SHARD)
    omitted = "model.layers.0.mlp.up_proj.weight"
    names = [name for name in load_file(odd / SHARD) if name != omitted]
    (odd / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, SHARD)}))
    refused(experts.with_language(odd), f"{odd} lacks 1 tensors", omitted)


def test_an_index_goes_before_a_single_file_as_in_mergekit(
    experts: Experts, refused: Refused, odd: Path
) -> None:
    (odd / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    refused(experts.with_language(odd), "1 of 1 shards are missing")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_in_integers_or_small_floats(
    experts: Experts, refused: Refused, tmp_path: Path, dtype: torch.dtype
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    odd = restored(
        experts.language, tmp_path / "odd", lambda held: {**held, name: held[name].to(dtype)}
    )
    refused(experts.with_language(odd), "stores weights as ", "(quantised)")


def test_integers_that_are_buffers_are_no_quantised_weights(
    experts: Experts, merge: Merge, tmp_path: Path
) -> None:
    buffers = {
        "model.position_ids": torch.arange(8)[None],
        "model.counted": torch.tensor(3),
    }
    odd = restored(experts.language, tmp_path / "odd", lambda held: {**held, **buffers})
    result = merge(experts.with_language(odd))
    assert "quantised" not in result.output
