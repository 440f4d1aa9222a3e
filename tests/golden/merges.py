"""Fixed merges: inputs made of whole numbers, a recipe for each thing the methods can do.

Values are whole multiples of 1/64, so sums are exact and only the methods' own rounding is seen:
the bytes do not depend on the order in which a machine adds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.standins.merging import merge

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
_SWAP: dict[str, dict[str, Any]] = {
    "outer": {"bottom_layers": 2, "top_layers": 1},
    "outer, transitions": {"bottom_layers": 1, "top_layers": 1, "bottom_transition": 2},
    "outer, top transition alone": {"bottom_layers": 1, "top_layers": 0, "top_transition": 2},
    "middle": {"placement": "middle", "bottom_layers": 2, "top_layers": 1, "top_transition": 1},
    "random": {"placement": "random", "bottom_layers": 2, "top_layers": 1, "seed": 3},
    "alternating": {"placement": "alternating", "bottom_layers": 2, "top_layers": 1},
    "layers": {"placement": "layers", "language_layers": "0,3-4", "bottom_transition": 1},
    "soup": {"placement": "soup"},
    "soup, weighted": {"placement": "soup", "task_weight": 0.7, "language_weight": 0.4},
    "delta_share, layers": {"placement": "delta_share", "delta_threshold": 0.01},
    "delta_share, modules": {
        "placement": "delta_share",
        "delta_unit": "module",
        "delta_threshold": 0.01,
        "delta_blend": 0.9,
    },
    "magnitude": {"bottom_layers": 1, "bottom_transition": 2, "weighting": "magnitude"},
    "magnitude soup": {"placement": "soup", "weighting": "magnitude"},
    **{
        f"non_layer {name}": {"bottom_layers": 2, "top_layers": 1, "non_layer": name}
        for name in ("task", "language", "base")
    },
    "layer_norms average": {"bottom_layers": 2, "top_layers": 1, "layer_norms": "average"},
    "swap_modules attention": {"bottom_layers": 3, "top_layers": 1, "swap_modules": "attention"},
    "swap_modules mlp": {"bottom_layers": 3, "top_layers": 1, "swap_modules": "mlp"},
}
_REVERT: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 0.06},
    "keep_fraction": {"keep_fraction": 0.4},
    "keep_fraction and layers": {"keep_fraction": 0.5, "bottom_layers": 1, "top_layers": 1},
    "layers": {"revert_layers": "1,3-4"},
    "modules": {"revert_modules": "attention,non_layer"},
}


def merge_digests(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each merge and a hash of its tensors; writes below `folder`."""
    base = _write(folder / "base")
    task, language = _write(folder / "task", "task"), _write(folder / "language", "language")
    second, third = _write(folder / "second", "second"), _write(folder / "third", "third")
    adapter = _write_adapter(folder / "adapter")
    pair = [_expert(task, "task"), _expert(language, "language")]
    several = [_expert(task, "task", weight=0.5), _expert(second, "task"), _expert(third, "task")]
    transition = {"bottom_layers": 2, "bottom_transition": 2, "top_layers": 1}
    swaps: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
        *((name, pair, {"parameters": given}) for name, given in _SWAP.items()),
        ("bfloat16 out", pair, {"parameters": transition, "out_dtype": "bfloat16"}),
        ("bfloat16", pair, {"parameters": transition, "dtype": "bfloat16"}),
        ("several experts", [*several, pair[1]], {"parameters": transition}),
        (
            "several experts, magnitude",
            [*several, pair[1]],
            {"parameters": {**transition, "weighting": "magnitude"}},
        ),
        (
            "LoRA",
            [_expert(f"{base}+{adapter}", "task"), pair[1]],
            {"parameters": transition},
        ),
    ]
    documents = {
        f"layer_swap, {name}": {"merge_method": "layer_swap", "models": models, **more}
        for name, models, more in swaps
    } | {
        f"delta_revert, {name}": {
            "merge_method": "delta_revert",
            "models": [{"model": str(task)}],
            "parameters": given,
        }
        for name, given in _REVERT.items()
    }
    for number, (name, document) in enumerate(documents.items()):
        out = folder / f"merged{number}"
        cache = str(folder / "cache")
        merge({**document, "base_model": str(base)}, out, lora_merge_cache=cache)
        yield name, _digest(out)


def _digest(folder: Path) -> str:
    """Return a hash of names, dtypes, shapes and bytes of every tensor, in whatever files."""
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _expert(model: Path | str, role: str, **more: Any) -> dict[str, Any]:
    return {"model": str(model), "parameters": {"role": role, **more}}


def _numbers(text: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return whole numbers from -128 to 127 that follow from `text`."""
    count = int(np.prod(shape))
    drawn = hashlib.shake_256(text.encode()).digest(count)
    return np.frombuffer(drawn, dtype=np.int8).reshape(shape).astype(np.int64)


def _write(folder: Path, name: str | None = None) -> Path:
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
    config = {
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
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _write_adapter(folder: Path) -> Path:
    """Write an adapter on two modules; its change is a whole multiple of 1/64 as well."""
    folder.mkdir()
    tensors = {}
    for module, (outputs, inputs) in (("q_proj", (WIDTH, WIDTH)), ("v_proj", (WIDTH, WIDTH))):
        for layer in range(LAYERS):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for kind, shape in (("lora_A", (2, inputs)), ("lora_B", (outputs, 2))):
                numbers = _numbers(f"{name} {kind}", shape) // 32
                tensors[f"{name}.{kind}.weight"] = torch.tensor(numbers / 8, dtype=torch.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
