"""The swapped prefix is cached by peft layer by layer as the plan says."""

import json

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


@pytest.fixture
def base(experts):
    """Return a Llama with half as many key-value heads as query heads."""
    return experts("llama", dtype=torch.float32).base


def write_prefix(base, folder, seed, tokens=TOKENS, **more):
    torch.manual_seed(seed)
    config = peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=tokens, encoder_hidden_size=16, **more
    )
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def prefixes(base, tmp_path):
    """Return role -> folder of a prefix."""
    roles = enumerate(("task", "language"))
    return {role: write_prefix(base, tmp_path / role, seed) for seed, role in roles}


def cached(base, adapter):
    """Return the keys and values of each layer that peft puts into the cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    cache = peft.PeftModel.from_pretrained(model, adapter).eval().get_prompt(1)
    cache = getattr(cache, "self_attention_cache", cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


@pytest.mark.parametrize("projected", [False, True])
def test_each_layer_is_cached_as_the_plan_says(base, prefixes, projected, tmp_path):
    if projected:
        more = {"prefix_projection": True}
        prefixes["task"] = write_prefix(base, tmp_path / "projected", 5, **more)
    out, lines = swapped(tmp_path, base, prefixes, SWAP.parameters())
    found = cached(base, out)
    task, language = (cached(base, prefixes[role]) for role in ("task", "language"))
    assert len(found) == LAYERS
    for layer, pair in enumerate(found):
        for ours, t, s in zip(pair, task[layer], language[layer], strict=True):
            source = SWAP.of_layer(layer)
            if source == "average":
                torch.testing.assert_close(ours, (t + 2 * s) / 3)
            else:
                assert same_bits(ours, {"task": t, "language": s}[source])
    assert not torch.equal(task[0][0], language[0][0])
    assert any(f"prefix of {TOKENS} tokens" in line for line in lines)
    assert logits(base, out).isfinite().all()
    record = json.loads((out / "layer_swap_plan.json").read_text())
    assert record["adapter"] == {"kind": "prefix", "tokens": TOKENS}


def test_swapping_the_mlp_alone_leaves_the_prefix_to_the_task(base, prefixes, tmp_path):
    out, _ = swapped(tmp_path, base, prefixes, {"swap_modules": "mlp", "bottom_layers": 2})
    name = "adapter_model.safetensors"
    found, task = (load_file(folder / name) for folder in (out, prefixes["task"]))
    assert same_bits(found["prompt_embeddings"], task["prompt_embeddings"])


def test_what_is_refused(base, prefixes, experts, tmp_path):
    def refused(part, parameters=None, rank=None, **folders):
        with pytest.raises(InputError) as caught:
            swapped(tmp_path, base, prefixes | folders, parameters or {"bottom_layers": 1}, rank)
        assert part in caught.value.message

    refused("--rank", rank=2)
    longer = write_prefix(base, tmp_path / "long", 1, TOKENS + 2)
    refused("3, 5 tokens; train them with one", language=longer)
    refused("weighting: magnitude", parameters={"weighting": "magnitude"})
    document = recipe({"task": f"{base}+{prefixes['task']}", "language": str(base)}, {}, base)
    with pytest.raises(InputError, match=f"{base} has no prefix"):
        run(tmp_path, document)
    other = experts("llama", dtype=torch.float32, num_hidden_layers=4).base
    short = write_prefix(other, tmp_path / "short", 2)
    refused("short has 4 layers, and the base has 6", language=short)
    # F9: experts without an adapter have no prefix, so the first was blamed for the second's
    models = {"task": str(base), "language": f"{base}+{short}"}
    with pytest.raises(InputError, match=f"{base} has no prefix"):
        run(tmp_path, recipe(models, {"bottom_layers": 1}, base))
    config = tmp_path / "task" / "adapter_config.json"
    document = json.loads(config.read_text())
    for changes, part in (
        ({"num_virtual_tokens": 7, "token_dim": "8"}, "token_dim '8'"),
        ({"num_virtual_tokens": 7}, "prompt_embeddings is [3, 96]"),
    ):
        config.write_text(json.dumps(document | changes))
        refused(part)
    assert not (tmp_path / "out").exists()
