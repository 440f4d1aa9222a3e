"""Checkpoints that mergekit 0.1.5 cannot read: it fails, we say why before any output exists.

Each test runs stock `linear` first. The day mergekit can read one of them, the test fails and the
family moves to `test_families.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layerswap_method.errors import InputError
from tests.standins.merging import linear_recipe, merge, recipe, roles
from tests.standins.oracle import Swap, assert_same, expected, stored
from tests.standins.tuned import restored
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS)

MESSAGES = {
    "gpt_neox": (
        r"GPTNeoXForCausalLM asks for 18 tensors .*gpt_neox\.layers\.0\.attention\.bias.*"
        r"transformers 5 no longer saves these buffers"
    ),
    "gemma3_vl": (
        r"Gemma3ForConditionalGeneration asks for 53 tensors .*vision_tower\.vision_model\..*"
        r"the original checkpoint on the hub may hold these"
    ),
    "qwen2_vl": (
        r"Qwen2VLForConditionalGeneration does not fit the config .*, which has no attribute "
        r"num_hidden_layers; mergekit cannot read this model"
    ),
    "t5": r"what is merged by layer is one text decoder; .* modules decoder, encoder, shared",
}


@pytest.mark.parametrize("family", list(MESSAGES))
def test_what_mergekit_cannot_read_is_said_before_any_output(
    family: str, experts: Any, tmp_path: Path
) -> None:
    given = experts(family)
    with pytest.raises(RuntimeError, match=r"required but not present|has no attribute"):
        merge(linear_recipe([given.task, given.language]), tmp_path / "stock")
    folder = tmp_path / "ours"
    with pytest.raises(InputError, match=MESSAGES[family]) as raised:
        merge(recipe(roles(given), SWAP.parameters()), folder / "merged")
    assert "\n" not in str(raised.value)
    assert not folder.exists()


def test_a_decoder_that_mergekit_would_lose_is_refused(experts: Any, tmp_path: Path) -> None:
    given = experts("llava")
    lossy = stored(merge(linear_recipe([given.task, given.language]), tmp_path / "stock"))
    assert not [name for name in lossy if "language_model" in name]
    folder = tmp_path / "ours"
    with pytest.raises(
        InputError, match=r"would leave 57 tensors .*language_model\.model\.layers\.0"
    ):
        merge(recipe(roles(given), SWAP.parameters()), folder / "merged")
    assert not folder.exists()


def _edited(experts: SimpleNamespace, root: Path, edit: Any) -> SimpleNamespace:
    """Return copies of the experts with other stored tensors."""
    folders = {n: restored(getattr(experts, n), root / n, edit) for n in ("task", "language")}
    return SimpleNamespace(**folders)


def test_gpt_neox_of_the_hub_with_its_buffers_is_merged(
    experts: Any, loads: Any, tmp_path: Path
) -> None:
    def with_buffers(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for layer in range(LAYERS):
            prefix = f"gpt_neox.layers.{layer}.attention"
            tensors[f"{prefix}.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
            tensors[f"{prefix}.masked_bias"] = torch.tensor(-1e9, dtype=torch.float32)
            tensors[f"{prefix}.rotary_emb.inv_freq"] = torch.rand(
                1, generator=torch.Generator().manual_seed(layer)
            )
        return tensors

    given = _edited(experts("gpt_neox"), tmp_path, with_buffers)
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    assert_same(stored(out), expected_with_buffers(given))
    loads(out)


def expected_with_buffers(given: SimpleNamespace) -> dict[str, torch.Tensor]:
    """Return the oracle's tensors; the mask is no floating tensor and is the same in both."""
    task, language = stored(given.task), stored(given.language)
    masks = {name: t for name, t in task.items() if not t.is_floating_point()}
    assert len(masks) == LAYERS
    weights = {name: tensor for name, tensor in task.items() if name not in masks}
    return {**expected(SWAP, weights, language), **masks}


def test_gemma3_vision_of_the_hub_is_merged(experts: Any, loads: Any, tmp_path: Path) -> None:
    # google/gemma-3-4b-it stores the vision tower one level deeper than transformers 5 saves it.
    def as_on_the_hub(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name.replace("vision_tower.", "vision_tower.vision_model."): tensor
            for name, tensor in tensors.items()
        }

    given = _edited(experts("gemma3_vl"), tmp_path, as_on_the_hub)
    out = merge(recipe(roles(given), SWAP.parameters()), tmp_path / "merged")
    assert_same(stored(out), expected(SWAP, stored(given.task), stored(given.language)))
    loads(out)
