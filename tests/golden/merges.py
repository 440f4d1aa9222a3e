"""Fixed merges of whole multiples of 1/64, whose sums are exact: bytes depend on no machine."""

import hashlib
import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.standins.merging import merge, recipe, revert_recipe

LAYERS, VOCAB, WIDTH, INNER = 6, 12, 8, 12
_BRANCHES = {
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
    **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
    **{f"mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")},
    "mlp.down_proj": (WIDTH, INNER),
}
_SHAPES = {
    "model.embed_tokens.weight": (VOCAB, WIDTH),
    **{
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(LAYERS)
        for name, shape in _BRANCHES.items()
    },
    "model.norm.weight": (WIDTH,),
    "lm_head.weight": (VOCAB, WIDTH),
}
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_TRANSITION = {"bottom_layers": 2, "bottom_transition": 2, "top_layers": 1}
_SHARE = {"placement": "delta_share", "delta_threshold": 0.01}
_SWAPS = {
    # name: parameters, what else stands in the recipe
    "outer, transitions": ({"bottom_layers": 1, "top_layers": 1, "bottom_transition": 2}, {}),
    "random": ({"placement": "random", "bottom_layers": 2, "top_layers": 1, "seed": 3}, {}),
    "soup, weighted": ({"placement": "soup", "task_weight": 0.7, "language_weight": 0.4}, {}),
    "delta_share, modules": ({**_SHARE, "delta_unit": "module", "delta_blend": 0.9}, {}),
    "magnitude": ({"bottom_layers": 1, "bottom_transition": 2, "weighting": "magnitude"}, {}),
    "layer_norms average": ({"bottom_layers": 2, "top_layers": 1, "layer_norms": "average"}, {}),
    "bfloat16 out": (_TRANSITION, {"out_dtype": "bfloat16"}),
    "bfloat16": (_TRANSITION, {"dtype": "bfloat16"}),
    "several experts": (_TRANSITION, {}),
    "several experts, magnitude": ({**_TRANSITION, "weighting": "magnitude"}, {}),
    "LoRA": (_TRANSITION, {}),
}
_REVERTS = {
    "threshold": {"threshold": 0.06},
    "keep_fraction": {"keep_fraction": 0.4},
    "keep_fraction and layers": {"keep_fraction": 0.5, "bottom_layers": 1, "top_layers": 1},
    "modules": {"revert_modules": "attention,non_layer"},
}


def merge_digests(folder):
    """Yield the name of each merge and a hash of its tensors; writes below `folder`."""
    names = ("task", "language", "second", "third")
    base = _write(folder / "base")
    task, language, *others = (_write(folder / name, name) for name in names)
    adapter = _write_adapter(folder / "adapter")
    adapted = f"{base}+{adapter}"
    documents = {}
    for name, (parameters, more) in _SWAPS.items():
        several = [task, *others] if "several" in name else [adapted if name == "LoRA" else task]
        models = {"task": several, "language": language}
        document = documents[f"layer_swap, {name}"] = recipe(models, parameters, base, **more)
        if "several" in name:
            document["models"][0]["parameters"]["weight"] = 0.5
    for name, parameters in _REVERTS.items():
        documents[f"delta_revert, {name}"] = revert_recipe(task, base, parameters)
    for number, (name, document) in enumerate(documents.items()):
        yield name, _digest(merge(document, folder / f"merged{number}"))


def _digest(folder):
    """Return a hash of names, dtypes, shapes and bytes of every tensor, in whatever files."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _numbers(text, shape):
    """Return whole numbers from -128 to 127 that follow from `text`."""
    drawn = hashlib.shake_256(text.encode()).digest(int(np.prod(shape)))
    return np.frombuffer(drawn, dtype=np.int8).reshape(shape).astype(np.int64)


def _write(folder, name=None):
    """Write the base, or an expert: the base with a small change that differs from row to row."""
    folder.mkdir()
    tensors = {}
    for tensor, shape in _SHAPES.items():
        numbers = _numbers(f"base {tensor}", shape)
        if name is not None:
            (reach,) = 1 + abs(_numbers(f"{name} {tensor} reach", (1,))) % 6
            change = _numbers(f"{name} {tensor}", shape) * reach // 128
            numbers = numbers + change * (1 + np.arange(shape[-1]) % 3)
        tensors[tensor] = torch.tensor(numbers / 64, dtype=torch.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    return folder


def _write_adapter(folder):
    """Write an adapter on two modules; its change is a whole multiple of 1/64 as well."""
    folder.mkdir()
    tensors = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for kind, shape in (("lora_A", (2, WIDTH)), ("lora_B", (WIDTH, 2))):
                numbers = _numbers(f"{name} {kind}", shape) // 32
                tensors[f"{name}.{kind}.weight"] = torch.tensor(numbers / 8, dtype=torch.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
