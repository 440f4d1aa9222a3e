"""Base plus adapter, tensor by tensor, is the copy that peft would merge, bit for bit."""

import shutil

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from layerswap_method.checkpoint import lora
from layerswap_method.checkpoint.checkpoint import read_checkpoint
from layerswap_method.checkpoint.lora import read_changes
from layerswap_method.errors import InputError
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.recipe.references import Model
from layerswap_method.tensor_names import bare_name
from tests.standins.fine_tunes import (
    edited,
    rewritten,
    save_adapter,
    train_adapter,
    with_head,
    write_adapter,
)
from tests.standins.merging import by_mergekit, merge, recipe, revert_recipe, tensors_of, write
from tests.standins.oracle import assert_same, stored

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch_dtype.*"),
    pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied"),
    pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`"),
]
PLAIN = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 2, "lora_alpha": 7}
PATTERNS = {
    "rank_pattern": {"layers.1.self_attn.q_proj": 3, "v_proj": 1},
    "alpha_pattern": {"layers.2.*down_proj": 11},
}
REPEATS = {
    "rank_pattern": {r"layers\.([12])+\.self_attn\.(q|v)_proj": 3},
    "alpha_pattern": {
        r"(?:\w+\.)+down_proj": 11,
        "|".join([*(f"x{at}" for at in range(200)), "v_proj"]): 5,
    },
}
"""Repeated groups and long alternatives, which peft reads."""

KINDS = [
    # family, dtype of the base, config of the adapter, number of tensors that it changes
    ("llama", torch.float32, {}, 18),
    ("llama", torch.float32, {"use_rslora": True}, 18),
    ("llama", torch.float32, PATTERNS, 18),
    ("llama", torch.float32, REPEATS, 18),
    ("llama", torch.float32, {"target_modules": ["embed_tokens", "k_proj"]}, 7),
    ("llama", torch.float32, {"target_modules": ["lm_head"]}, 1),
    ("llama", torch.float32, {"layers_to_transform": [0, 4]}, 6),
    *(("llama", each, {}, 18) for each in (torch.bfloat16, torch.float16, torch.float64)),
    ("llama_tied", torch.float32, {"target_modules": ["embed_tokens", "q_proj"]}, 7),
    # Conv1D, one of them square
    ("gpt2", torch.float32, {"target_modules": ["c_attn", "attn.c_proj"]}, 12),
    ("qwen2", torch.float32, {"target_modules": ["q_proj", "gate_proj"]}, 12),
]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HEAD = "base_model.model.lm_head"


def adapter_of(base, folder, **config):
    return train_adapter(base, folder, **PLAIN | config)


def check_merged(base, adapter, tmp_path):
    """Fail unless ours and mergekit's copy agree; return the names that the adapter changes."""
    document = {"merge_method": "passthrough", "models": [{"model": f"{base}+{adapter}"}]}
    theirs = merge(document, tmp_path / "merged", lora_merge_cache=str(tmp_path / "cache"))
    found, plain = tensors_of(document), stored(base)
    assert_same(found, stored(theirs))
    return {name for name in found if not torch.equal(found[name].double(), plain[name].double())}


@pytest.mark.parametrize(("family", "dtype", "config", "changed"), KINDS, ids=range(len(KINDS)))
def test_every_kind(family, dtype, config, changed, experts, tmp_path):
    base = experts(family, dtype=dtype).base
    adapter = adapter_of(base, tmp_path / "adapter", fan_in_fan_out=family == "gpt2", **config)
    assert len(check_merged(base, adapter, tmp_path)) == changed
    if dtype != torch.float32:
        half = shutil.copytree(adapter, tmp_path / "half")
        held = load_file(adapter / WEIGHTS)
        save_file({n: t.bfloat16() for n, t in held.items()}, half / WEIGHTS)
        assert len(check_merged(base, half, tmp_path / "again")) == changed


def test_tensors_without_a_change_are_as_stored(experts, tmp_path):
    """Of routers, biases or also weights (Ernie 4.5) are float32 in every model that is loaded."""
    routed = experts("glm4_moe", dtype=torch.float32).base

    def edit(name, tensor):
        return tensor + 0.1 if "e_sc" in name or "mlp.gate" in name else tensor.bfloat16()

    base = rewritten(routed, tmp_path / "base", edit)
    adapter = write_adapter(tmp_path / "adapter", "model.layers.1.self_attn.k_proj", 16, 8)
    found, plain = tensors_of(merge_of_one(Model("model", base, adapter))), stored(base)
    (changed,) = [name for name in plain if "1.self_attn.k_proj.weight" in name]
    assert not torch.equal(found.pop(changed), plain.pop(changed))
    assert_same(found, plain)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32, torch.bfloat16}


def test_a_base_whose_config_is_wider_gets_the_change_in_that_dtype(experts, tmp_path):
    """transformers loads it so, and peft adds the change there; it was rounded to bfloat16."""
    base = edited(shutil.copytree(experts("llama").base, tmp_path / "base"), dtype="float32")
    adapter = adapter_of(base, tmp_path / "adapter")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(loaded, adapter).merge_and_unload().state_dict()
    found = tensors_of(merge_of_one(Model("model", base, adapter)))
    assert_same({name: tensor.float() for name, tensor in found.items()}, dict(theirs))
    changed = [name for name, tensor in found.items() if tensor.dtype == torch.float32]
    assert len(changed) == 18


def test_a_base_of_another_or_of_two_dtypes(experts, tmp_path):
    plain = experts("llama", dtype=torch.float32).base
    stated = edited(shutil.copytree(plain, tmp_path / "stated"), dtype="bfloat16")
    check_merged(stated, adapter_of(stated, tmp_path / "one"), tmp_path / "first")
    mixed = rewritten(plain, tmp_path / "mixed", lambda n, t: t if "norm" in n else t.bfloat16())
    adapter = adapter_of(mixed, tmp_path / "two")
    document = {"merge_method": "passthrough", "models": [{"model": f"{mixed}+{adapter}"}]}
    theirs = stored(merge(document, tmp_path / "m", lora_merge_cache=str(tmp_path / "cache")))
    found = tensors_of(document)
    norm = found["model.norm.weight"]  # peft's copy of the base is all in one dtype
    assert torch.equal(norm, stored(mixed)["model.norm.weight"])
    assert_same({name: tensor.bfloat16() for name, tensor in found.items()}, theirs)


REFUSED = [
    ({"use_dora": True}, "use_dora"),
    ({"bias": "all"}, "bias is 'all'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    ({"init_lora_weights": "pissa"}, "'pissa'"),
    ({"target_parameters": ["x"]}, "target_parameters"),
    ({"peft_type": "IA3"}, "'IA3'"),
    ({"peft_type": "PREFIX_TUNING"}, "use layerswap swap-adapters"),
    ({"r": 5}, "rank 5"),
    ({"r": None}, "rank 8"),  # peft's default
    ({"r": 0}, "r is 0"),
    # two tensors of NaN; json reads both words as numbers
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    ({"lora_alpha": float("inf")}, "lora_alpha is inf"),
    ({"rank_pattern": {"(": 2}}, "rank_pattern"),
    ({"rank_pattern": [1]}, "rank_pattern"),
    ({"rank_pattern": {"q_proj": "2"}}, "rank_pattern"),
    ({"alpha_pattern": {"q_proj": float("inf")}}, "alpha_pattern"),
]


@pytest.mark.parametrize(("changes", "part"), REFUSED, ids=lambda each: str(each)[:40])
def test_what_is_no_low_rank_change_is_refused(changes, part, experts, tmp_path):
    adapter = write_adapter(tmp_path / "a", "model.layers.1.self_attn.q_proj", 16, 16)
    edited(adapter, CONFIG, **changes)
    with pytest.raises(InputError) as caught:
        merge_of_one(Model("model", experts("llama").base, adapter))
    assert str(adapter) in caught.value.message
    assert part in caught.value.message


def test_tensors_that_are_no_change_are_refused(experts, tmp_path):
    file = adapter_of(experts("llama").base, tmp_path / "adapter") / WEIGHTS
    found = load_file(file)
    down = next(name for name in found if "lora_A" in name)
    shutil.copyfile(file, tmp_path / "elsewhere")
    for damage, part in (
        ({**found, f"{HEAD}.weight": torch.zeros(96, 16)}, "lm_head"),
        ({**found, f"{HEAD}.base_layer.weight": torch.zeros(96, 16).bfloat16()}, "lm_head"),
        ({**found, f"{HEAD}.base_layer.weight": torch.zeros(96, 16)}, "lm_head"),  # another dtype
        ({**found, f"{HEAD}.weight": torch.zeros(99, 16)}, r"resize_token_embeddings\(99\)"),
        ({n: t for n, t in found.items() if n != down}, "lacks the matrices"),
        ({n: t for n, t in found.items() if n != down.replace("_A", "_B")}, "no lora_B"),
        ({}, "lacks the matrices"),
        (lambda: file.write_bytes(b"not safetensors"), "is damaged"),
        (lambda: file.rename(file.with_suffix(".bin")), "No such file"),
    ):
        damage() if callable(damage) else save_file(damage, file)
        with pytest.raises(InputError, match=part):
            merge_of_one(Model("model", experts("llama").base, file.parent))
    file.symlink_to(tmp_path / "elsewhere")  # weights may be a link to another place
    assert merge_of_one(Model("model", experts("llama").base, file.parent)).tensors


def test_an_adapter_of_another_model_is_refused(experts, tmp_path):
    llama, tied = experts("llama").base, experts("llama_tied", dtype=torch.float32).base
    head = adapter_of(llama, tmp_path / "head", target_modules=["lm_head", "q_proj"])
    down = adapter_of(llama, tmp_path / "down", target_modules=["down_proj"])
    for base, adapter, part in (
        (tied, head, r"lm_head\.weight"),
        (with_head(tied, tmp_path / "twice"), head, r"lm_head\.weight.*tied head"),
        (experts("llama", intermediate_size=32).base, down, r"\[16, 24\].*\[16, 32\]"),
    ):
        with pytest.raises(InputError, match=part):
            merge_of_one(Model("model", base, adapter))


def test_an_adapter_that_is_not_whole_is_refused(experts, tmp_path):
    base = experts("llama").base
    adapter = adapter_of(base, tmp_path / "adapter", target_modules=["q_proj"])
    whole = load_file(adapter / WEIGHTS)
    save_file({n: t for n, t in whole.items() if ".3." not in n}, adapter / WEIGHTS)
    with pytest.raises(InputError, match=r"lacks the matrices of model.layers.3.self_attn.q_proj,"):
        merge_of_one(Model("model", base, adapter))
    # What the message advises, both of it, is enough.
    edited(adapter, CONFIG, exclude_modules=["model.layers.3.self_attn.q_proj"])
    assert merge_of_one(Model("model", base, adapter)).tensors
    edited(adapter, CONFIG, exclude_modules=None)
    save_file(whole, adapter / WEIGHTS)
    assert merge_of_one(Model("model", base, adapter)).tensors
    edited(adapter, CONFIG, target_modules=["k_proj"])
    with pytest.raises(InputError, match=r"does not target model\.layers\.0\."):
        merge_of_one(Model("model", base, adapter))


def test_names_of_a_mixture_of_experts_are_looked_up_and_not_searched(
    experts, tmp_path, monkeypatch
):
    """Qwen3-30B-A3B has 18,432 matrices of experts: a search for each took minutes."""
    base = experts("qwen3_moe").base
    names = [n for n, t in stored(base).items() if ".experts." in n and t.ndim == 2]
    assert len(names) > 20
    tensors = {}
    for name in names:
        outputs, inputs = stored(base)[name].shape
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"] = torch.ones(2, inputs)
        tensors[f"{module}.lora_B.weight"] = torch.ones(outputs, 2)
    modules = ["gate_proj", "up_proj", "down_proj"]
    adapter = save_adapter(tmp_path / "adapter", tensors, 2, 4, modules)
    calls = 0

    def count(name):
        nonlocal calls
        calls += 1
        return bare_name(name)

    monkeypatch.setattr(lora, "bare_name", count)
    checkpoint = read_checkpoint("base", base)
    assert len(read_changes(adapter, checkpoint)) == len(names)
    assert calls <= len(checkpoint.tensors) + 2 * len(tensors)


@pytest.mark.parametrize("way", [write, by_mergekit], ids=["files", "mergekit"])
def test_a_light_change_of_a_narrow_base_is_whole_in_a_wide_merge(way, experts, tmp_path):
    """Rounded to the base's bfloat16, half of the values would not change, others by steps."""
    base = experts("llama").base
    adapter = train_adapter(base, tmp_path / "adapter", scale=0.01, **PLAIN)
    models = {"task": f"{base}+{adapter}", "language": base}
    counts = {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 1}
    document = recipe(models, counts, base, dtype="float32")
    way(document, tmp_path / "out")
    found, plain = stored(tmp_path / "out"), stored(base)
    factors = load_file(adapter / WEIGHTS)
    for layer, share in ((1, 0.5), (2, 1.0)):  # of a transition, and the task expert's
        name = f"model.layers.{layer}.self_attn.q_proj"
        down, up = (factors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        change = up.double() @ down.double() * PLAIN["lora_alpha"] / PLAIN["r"]
        wanted = plain[f"{name}.weight"].double() + share * change
        distance = (found[f"{name}.weight"].double() - wanted).abs().max()
        assert change.abs().max() < 0.01
        assert distance < 1e-7, name


def test_features_of_a_light_change_are_whole_in_a_wide_merge(experts, tmp_path):
    base = experts("llama").base
    adapter = train_adapter(base, tmp_path / "adapter", scale=0.01, **PLAIN)
    expert = f"{base}+{adapter}"
    write(revert_recipe(expert, base, {"keep_fraction": 0.02}, dtype="float32"), tmp_path / "out")
    found, plain = stored(tmp_path / "out"), stored(base)
    factors = load_file(adapter / WEIGHTS)
    partly = 0
    for name in [name for name in found if "q_proj.weight" in name]:
        module = f"base_model.model.{name.removesuffix('.weight')}"
        down, up = (factors[f"{module}.lora_{side}.weight"] for side in "AB")
        change = up.double() @ down.double() * PLAIN["lora_alpha"] / PLAIN["r"]
        moved = found[name].double() - plain[name].double()
        kept = moved != 0
        partly += 0 < kept.double().mean() < 1
        assert ((moved - change)[kept].abs() < 1e-7).all(), name
    assert partly
