"""Every family: each tensor of the merge against the oracle, and the merged model loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.standins.merging import merge, recipe, roles
from tests.standins.oracle import READERS, Swap, assert_same, expected, stored
from tests.standins.zoo import LAYERS

TEXT = [
    "llama",
    "llama_tied",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "olmo2",
    "gpt2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "glm4_moe",
    # Without a definition in mergekit 0.1.5, which then infers one from the checkpoints:
    "smollm3",
    "olmo3",
    "opt",
    "gpt_oss",
]
VISION = ["mistral3_vl", "qwen2_5_vl", "qwen3_vl"]
SWAP = Swap(LAYERS)


@pytest.mark.parametrize("family", TEXT + VISION)
def test_every_tensor_is_the_oracles(family: str, experts: Any, loads: Any, tmp_path: Path) -> None:
    given = experts(family)
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    read = READERS.get(family, stored)
    assert_same(stored(out), expected(SWAP, read(given.task), read(given.language)))
    loads(out)
    plan = json.loads((out / "layer_swap_plan.json").read_text())
    assert plan["layers"] == [SWAP.of_layer(layer) for layer in range(LAYERS)]
    assert set(plan["layers"]) == {"task", "language", "average"}


@pytest.mark.parametrize("family", ["llama", *VISION])
@pytest.mark.parametrize("non_layer", ["task", "language", "base"])
def test_everything_outside_the_decoders_layers_follows_non_layer(
    family: str, non_layer: str, experts: Any, tmp_path: Path
) -> None:
    given = experts(family)
    swap = Swap(LAYERS, non_layer=non_layer)
    out = merge(recipe(roles(given), swap.parameters(), given.base), tmp_path / "merged")
    assert_same(
        stored(out),
        expected(swap, stored(given.task), stored(given.language), stored(given.base)),
    )


def test_the_oracle_tells_experts_apart(experts: Any) -> None:
    # A merge test proves nothing where task, language and average hold the same values.
    given = experts("llama")
    task, language = stored(given.task), stored(given.language)
    for name, tensor in task.items():
        assert not tensor.equal(language[name]), name
        assert SWAP.of_tensor(name) in {"task", "language", "average"}
    with pytest.raises(AssertionError, match="tensors differ"):
        assert_same(task, expected(SWAP, task, language))
