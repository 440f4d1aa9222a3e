"""The sizes and settings of one decoder, as its config and its tensors' shapes state them.

Knows what the classes in `DECODERS` write; not what to do with two that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PositiveFloat, PositiveInt, ValidationError

from layerswap_method.checkpoints.config import read_document
from layerswap_method.checkpoints.headers import Checkpoint
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen

DECODERS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Class names that are known -> the `model_type` of each. Llama's and Mistral's layers are alike,
tensor for tensor; Qwen2's have biases on q, k and v, Qwen3's norms of each query and key head."""


EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")
"""Under what names configs of different families state them."""


class ModelShape(Frozen):
    """What two models must share before one can stand in the other's place."""

    architecture: str
    """The class name, such as `LlamaForCausalLM`."""

    hidden: PositiveInt
    """Values of the residual stream (h)."""

    layers: PositiveInt
    """Decoder layers."""

    heads: PositiveInt
    """Query heads of a layer."""

    kv_heads: PositiveInt
    """Key-value heads of a layer; each serves `group` query heads, which stand together."""

    head_dim: PositiveInt
    """Values of one head; `heads * head_dim` need not be `hidden`."""

    intermediate: PositiveInt
    """Neurons of a layer's MLP."""

    vocab: PositiveInt
    """Rows of the embedding."""

    tied: bool
    """Whether the output embedding is the input embedding."""

    rope_base: PositiveFloat
    """Theta of the rotary positions."""

    rope_scaling: Mapping[str, Any] | None
    """How rotary positions are stretched, under transformers' names; None where they are not."""

    sliding_window: int | None
    """Tokens that attention looks back; None for all."""

    positions: PositiveInt
    """Longest sequence (`max_position_embeddings`)."""

    eps: PositiveFloat
    """Epsilon of every RMSNorm."""

    activation: str
    """The MLP's, such as `silu`."""

    attention_bias: bool
    """Whether q, k, v and o have biases."""

    mlp_bias: bool
    """Whether gate, up and down have biases."""

    @property
    def group(self) -> int:
        """Return the query heads of one key-value head."""
        return self.heads // self.kv_heads


def read_shape(checkpoint: Checkpoint) -> ModelShape:
    """Return the shape of a checkpoint; its config and its tensors must state the same.

    Raises:
        InputError: for another architecture, a config that leaves a size out, or one whose sizes
            are not those of the tensors.
    """
    name = checkpoint.name
    architecture = checkpoint.config.architecture
    if architecture not in DECODERS:
        raise InputError(
            f"{name}: {architecture} is not known here; its layers must be those of "
            f"{' or '.join(DECODERS)}"
        )
    document = read_document(name, checkpoint.path)
    if document.get("use_sliding_window"):
        raise InputError(
            f"{name}: use_sliding_window is true: some of its layers look back less far than "
            "others, which is not known here; give a model without it"
        )
    try:
        shape = ModelShape(**stated(document))
    except ValidationError as error:
        fields = ", ".join(str(each["loc"][0]) for each in error.errors())
        raise InputError(
            f"{name}: config.json does not state {fields} as a model of this kind needs it"
        ) from error
    _check_tensors(checkpoint, shape)
    return shape


def stated(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `ModelShape` that a config states, with its class's defaults.

    Fields that it leaves out, and that have no default, are None.

    Args:
        document: a ``config.json``, or its part for the text model.
    """
    names = document.get("architectures") or ["unknown"]
    is_mistral = document.get("model_type") == "mistral"
    heads, hidden = document.get("num_attention_heads"), document.get("hidden_size")
    head_dim = document.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads:
        head_dim = hidden // heads
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        rope |= document[key] if isinstance(document.get(key), dict) else {}
    base = rope.pop("rope_theta", None) or document.get("rope_theta") or 10000.0
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    return {
        "architecture": str(names[0]),
        "hidden": hidden,
        "layers": document.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": document.get("num_key_value_heads") or (8 if is_mistral else heads),
        "head_dim": head_dim,
        "intermediate": document.get("intermediate_size"),
        "vocab": document.get("vocab_size"),
        "tied": bool(document.get("tie_word_embeddings", False)),
        "rope_base": base,
        "rope_scaling": None if kind == "default" else {"rope_type": kind, **rope},
        # Qwen's configs state a window and do not use it.
        "sliding_window": None
        if document.get("use_sliding_window") is False
        else document.get("sliding_window", 4096 if is_mistral else None),
        "positions": document.get("max_position_embeddings"),
        "eps": _first(document, EPS_KEYS, 1e-6),
        "activation": _first(document, ACTIVATION_KEYS, "silu"),
        "attention_bias": bool(document.get("attention_bias", False)),
        "mlp_bias": bool(document.get("mlp_bias", False)),
    }


def _first(document: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
    return next((document[key] for key in keys if document.get(key) is not None), default)


def _check_tensors(checkpoint: Checkpoint, shape: ModelShape) -> None:
    """Raise where the first layer or the embedding have other shapes than the config says."""
    layer = "model.layers.0"
    wanted = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        f"{layer}.self_attn.q_proj.weight": (shape.heads * shape.head_dim, shape.hidden),
        f"{layer}.self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, shape.hidden),
        f"{layer}.mlp.gate_proj.weight": (shape.intermediate, shape.hidden),
    }
    problems = []
    for name, sizes in wanted.items():
        found = checkpoint.shapes.get(name)
        if found != sizes:
            there = "lacks it" if found is None else f"hold {list(found)}"
            problems.append(f"{name} is {list(sizes)} by config.json, and the weights {there}")
    if shape.heads % shape.kv_heads:
        problems.append(f"{shape.heads} heads are no multiple of {shape.kv_heads} KV heads")
    if problems:
        raise InputError.from_problems(checkpoint.name, problems)
