"""The fields of configs that `layerswap harmonize` compares, and what reconciles them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from layerswap_method.checkpoint.config import LAYER_KEYS, architecture_of, stated_rope

Remedy = Literal["none needed", "harmonize", "force", "recipe", "impossible"]
"""`harmonize`: layerswap harmonize keeps the function. `force`: it does with --force, which changes
the function. `recipe`: the recipe of the merge does it."""

NOTHING = "nothing reconciles it"
COMMANDS = {"harmonize": "layerswap harmonize: ", "force": "layerswap harmonize --force: "}
"""Begin of the advice for a remedy."""


class Field(NamedTuple):
    """One field that configs of different families state under different names.

    Of its `keys` in ``config.json`` the first one that is stated counts, and where none is, the
    `default` of the classes in `DECODERS`. `effect` is what the remedy does.
    """

    label: str
    keys: tuple[str, ...]
    remedy: Remedy = "impossible"
    effect: str = NOTHING
    default: Any = None


_POSITIONS = ("max_position_embeddings",)
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
_SCALED = "the residual stream is scaled"
_CHANGES, FROM_BASE = "changes the function", "the merge has that of its base_model"

FIELDS: Mapping[str, Field] = {
    "hidden": Field("hidden size", ("hidden_size",), "harmonize", "copies, or zeros"),
    "layers": Field("layers", LAYER_KEYS, "harmonize", "layers that add nothing"),
    "heads": Field("query heads", ("num_attention_heads",), "harmonize", "copies, or zero heads"),
    "kv_heads": Field("key-value heads", ("num_key_value_heads",), "harmonize", "repeats heads"),
    "head_dim": Field("head size", ("head_dim",)),
    "intermediate": Field("MLP neurons", ("intermediate_size",), "harmonize", "zero neurons"),
    "rope_base": Field("RoPE base", ("rope_theta",), "force", _CHANGES, 10000.0),
    "rope_scaling": Field("RoPE scaling", ("rope_scaling",), "force", _CHANGES),
    "sliding_window": Field(
        "sliding window", ("sliding_window",), "harmonize", "Llama, within the window"
    ),
    "active_experts": Field("experts used", ("num_experts_per_tok",), "recipe", FROM_BASE),
    "positions": Field("longest sequence", _POSITIONS, "recipe", FROM_BASE),
    "eps": Field("norm eps", _EPS, "harmonize", _SCALED, 1e-6),
    "activation": Field("activation", _ACTIVATION, default="silu"),
}
"""Name in a `ModelShape` -> the field. One table to read, compare and write configs by."""

DECODERS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Class names that `harmonize` knows -> the `model_type` of each. Llama's and Mistral's layers are
alike, tensor for tensor; Qwen2's have biases on q, k and v, Qwen3's norms of each head."""


def stated_fields(document: Mapping[str, Any], *, defaults: bool = True) -> dict[str, Any]:
    """Return the fields of a `ModelShape` that a config states; else the default, or None."""
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        values = (document[key] for key in field.keys if document.get(key) is not None)
        fields[name] = next(values, field.default if defaults else None)
    is_mistral = document.get("model_type") == "mistral"
    heads, hidden = fields["heads"], fields["hidden"]
    if fields["head_dim"] is None and type(heads) is int and type(hidden) is int and heads:
        fields["head_dim"] = hidden // heads
    rope = stated_rope(document)
    fields["rope_base"] = rope.pop("rope_theta", None) or fields["rope_base"]
    kind = rope.pop("rope_type", None) or rope.get("type") or "default"
    rope.pop("type", None)
    fields["rope_scaling"] = None if kind == "default" else {"rope_type": kind, **rope}
    if document.get("use_sliding_window") is False:  # Qwen's configs state a window all the same
        fields["sliding_window"] = None
    elif is_mistral and "sliding_window" not in document:
        fields["sliding_window"] = 4096
    return {
        **fields,
        "kv_heads": fields["kv_heads"] or (8 if is_mistral else heads),
        "architecture": architecture_of(document),
        "vocab": document.get("vocab_size"),
        "tied": bool(document.get("tie_word_embeddings", False)),
        "attention_bias": bool(document.get("attention_bias", False)),
        "mlp_bias": bool(document.get("mlp_bias", False)),
    }
