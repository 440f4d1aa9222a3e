"""The swapped prefix is cached by peft layer by layer as the plan says."""

import json
import shutil

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
    longer = write_prefix(base, tmp_path / "long", 1, TOKENS + 2)
    other = experts("llama", dtype=torch.float32, num_hidden_layers=4).base
    short = write_prefix(other, tmp_path / "short", 2)
    config = json.loads((prefixes["task"] / "adapter_config.json").read_text())
    changed = {}
    for name, more in (("dim", {"token_dim": "8"}), ("tokens", {"num_virtual_tokens": 7})):
        changed[name] = shutil.copytree(prefixes["task"], tmp_path / name)
        (changed[name] / "adapter_config.json").write_text(json.dumps(config | more))
    task, language = (f"{base}+{prefixes[role]}" for role in ("task", "language"))
    count, nothing = {"bottom_layers": 1}, f"{base} has no prefix"
    for parameters, models, rank, part in (
        (count, (task, language), 2, "--rank"),
        (count, (task, f"{base}+{longer}"), None, "3, 5 tokens; train them with one"),
        ({"weighting": "magnitude"}, (task, language), None, "weighting: magnitude"),
        (count, (task, f"{base}+{short}"), None, "short has 4 layers, and the base has 6"),
        (count, (task, base), None, nothing),
        # F9: experts without an adapter have no prefix, so the first was blamed for the second's
        (count, (base, f"{base}+{short}"), None, nothing),
        (count, (f"{base}+{changed['dim']}", language), None, "token_dim '8'"),
        (count, (f"{base}+{changed['tokens']}", language), None, "prompt_embeddings is [3, 96]"),
    ):
        both = dict(zip(("task", "language"), map(str, models), strict=True))
        with pytest.raises(InputError) as caught:
            run(tmp_path, recipe(both, parameters, base), rank)
        assert part in caught.value.message
    assert not (tmp_path / "out").exists()
