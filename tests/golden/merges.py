"""Fixed merges of whole multiples of 1/64, whose sums are exact: bytes depend on no machine."""

import hashlib
import json

import numpy as np
import torch
from safetensors.torch import save_file

from tests.standins.fine_tunes import save_adapter
from tests.standins.merging import recipe, revert_recipe
from tests.standins.oracle import stored

LAYERS, VOCAB, WIDTH, INNER = 6, 12, 8, 12
_BRANCHES = {
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (WIDTH,)),
    **{f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (INNER, WIDTH)),
    "mlp.down_proj": (WIDTH, INNER),
}
_SHAPES = {
    **dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (VOCAB, WIDTH)),
    "model.norm.weight": (WIDTH,),
    **{f"model.layers.{i}.{name}.weight": _BRANCHES[name] for i in range(6) for name in _BRANCHES},
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
_LISTED = {"placement": "layers", "language_layers": "0,2-3", "top_transition": 1}
_SHARE = {"placement": "delta_share", "delta_threshold": 0.01}
_SWAPS = {
    # name: parameters, what else stands in the recipe
    "outer, transitions": ({"bottom_layers": 1, "top_layers": 1, "bottom_transition": 2}, {}),
    "random": ({"placement": "random", "bottom_layers": 2, "top_layers": 1, "seed": 3}, {}),
    "soup, weighted": ({"placement": "soup", "task_weight": 0.7, "language_weight": 0.4}, {}),
    "delta_share, modules": ({**_SHARE, "delta_unit": "module", "delta_blend": 0.9}, {}),
    "magnitude": ({"bottom_layers": 1, "bottom_transition": 2, "weighting": "magnitude"}, {}),
    "layers, base outside": ({**_LISTED, "non_layer": "base", "swap_modules": "attention"}, {}),
    "norms, weight 0": ({**_TRANSITION, "layer_norms": "average", "task_weight": 0}, {}),
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


def merge_digests(folder, merge):
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
    whole = hashlib.sha256()
    for name, tensor in sorted(stored(folder).items()):
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
    tensors = {}
    for module in (f"{i}.self_attn.{kind}_proj" for i in range(LAYERS) for kind in "qv"):
        name = f"base_model.model.model.layers.{module}"
        for kind, shape in (("lora_A", (2, WIDTH)), ("lora_B", (WIDTH, 2))):
            numbers = _numbers(f"{name} {kind}", shape) // 32
            tensors[f"{name}.{kind}.weight"] = torch.tensor(numbers / 8, dtype=torch.float32)
    return save_adapter(folder, tensors, 2, 2, ["q_proj", "v_proj"])
