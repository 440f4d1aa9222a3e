"""The swapped prefix is cached by peft layer by layer as the plan says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from layerswap_method.errors import InputError
from tests.adapter_swap.by_peft import logits, run, swapped
from tests.standins.merging import recipe
from tests.standins.oracle import Swap, same_bits
from tests.standins.zoo import LAYERS

SWAP = Swap(LAYERS, w_lang=2.0)
TOKENS = 3

Layers = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def base(experts: Any) -> Path:
    """Return a Llama with half as many key-value heads as query heads."""
    folder: Path = experts("llama", dtype=torch.float32).base
    return folder


def write_prefix(base: Path, folder: Path, seed: int, tokens: int = TOKENS, **more: Any) -> Path:
    torch.manual_seed(seed)
    config = peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=tokens, encoder_hidden_size=16, **more
    )
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    return folder


def cached(base: Path, adapter: Path) -> Layers:
    """Return the keys and values of each layer that peft puts into the cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    whole = peft.PeftModel.from_pretrained(model, adapter).eval()
    cache = whole.get_prompt(1)
    cache = getattr(cache, "self_attention_cache", cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


@pytest.mark.parametrize("projected", [False, True])
def test_each_layer_is_cached_as_the_plan_says(base: Path, projected: bool, tmp_path: Path) -> None:
    folders = {
        role: write_prefix(base, tmp_path / role, seed, prefix_projection=projected)
        for seed, role in enumerate(("task", "language"))
    }
    out, lines = swapped(tmp_path, base, folders, SWAP.parameters())
    found = cached(base, out)
    task, language = (cached(base, folders[role]) for role in ("task", "language"))
    assert len(found) == LAYERS
    for layer, pair in enumerate(found):
        for ours, t, s in zip(pair, task[layer], language[layer], strict=True):
            source = SWAP.of_layer(layer)
            if source == "average":
                torch.testing.assert_close(ours, (t + 2 * s) / 3)
            else:
                assert same_bits(ours, {"task": t, "language": s}[source])
    assert not torch.equal(task[0][0], language[0][0])
    assert f"adapter: prefix of {TOKENS} tokens" in lines
    assert logits(base, out).isfinite().all()
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record["adapter"] == {"kind": "prefix", "tokens": TOKENS, "composed": "by layer"}


def test_swapping_the_mlp_alone_leaves_the_prefix_to_the_task(base: Path, tmp_path: Path) -> None:
    folders = {
        role: write_prefix(base, tmp_path / role, seed)
        for seed, role in enumerate(("task", "language"))
    }
    out, _ = swapped(tmp_path, base, folders, {"swap_modules": "mlp", "bottom_layers": 2})
    name = "adapter_model.safetensors"
    found, task = (load_file(folder / name) for folder in (out, folders["task"]))
    assert same_bits(found["prompt_embeddings"], task["prompt_embeddings"])


def test_other_lengths_stand_side_by_side_in_a_soup_only(base: Path, tmp_path: Path) -> None:
    task = write_prefix(base, tmp_path / "task", 0)
    language = write_prefix(base, tmp_path / "language", 1, TOKENS + 2)
    folders = {"task": task, "language": language}
    out, lines = swapped(tmp_path, base, folders, {"placement": "soup"})
    assert "adapter: prefixes side by side in every layer, 3 + 5 tokens" in lines
    for ours, t, s in zip(*(cached(base, each) for each in (out, task, language)), strict=True):
        for kind in (0, 1):
            torch.testing.assert_close(ours[kind], torch.cat([t[kind], s[kind]], dim=2))
    assert logits(base, out).isfinite().all()
    for parameters in ({"bottom_layers": 1}, {"placement": "soup", "task_weight": 2.0}):
        with pytest.raises(InputError, match="the prefixes have 3, 5 tokens, and a prefix adapter"):
            swapped(tmp_path / "refused", base, folders, parameters)
    assert not (tmp_path / "refused" / "out").exists()


def test_what_is_refused(base: Path, experts: Any, tmp_path: Path) -> None:
    task, language = (
        write_prefix(base, tmp_path / role, seed) for seed, role in enumerate(("task", "language"))
    )
    folders = {"task": task, "language": language}
    with pytest.raises(InputError, match="--rank: a prefix has no rank"):
        swapped(tmp_path, base, folders, {}, rank=2)
    with pytest.raises(InputError, match="measure changes of weights, and a prefix changes none"):
        swapped(tmp_path, base, folders, {"weighting": "magnitude"})
    document = recipe({"task": f"{base}+{task}", "language": str(base)}, {}, base)
    with pytest.raises(InputError, match="has no prefix, and the others have one"):
        run(tmp_path, document)
    other = experts("llama", dtype=torch.float32, num_hidden_layers=4).base
    short = write_prefix(other, tmp_path / "short", 2)
    with pytest.raises(InputError, match="short has 4 layers, and the base has 6"):
        swapped(tmp_path, base, {"task": task, "language": short}, {"bottom_layers": 1})
    config = tmp_path / "task" / "adapter_config.json"
    document = json.loads(config.read_text())
    config.write_text(json.dumps(document | {"num_virtual_tokens": 7, "token_dim": "8"}))
    with pytest.raises(InputError, match="cannot be read as a prefix: token_dim is '8'"):
        swapped(tmp_path, base, folders, {"bottom_layers": 1})
    config.write_text(json.dumps(document | {"num_virtual_tokens": 7}))
    with pytest.raises(InputError, match=r"prompt_embeddings is \[3, 96\] in F32"):
        swapped(tmp_path, base, folders, {"bottom_layers": 1})
