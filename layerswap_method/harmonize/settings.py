"""Settings of a model that are not sizes of its tensors, and the config that states all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layerswap_method.checkpoint.config import DECODERS, ModelShape, stated_fields
from layerswap_method.harmonize.conversion import Conversion

LLAMA = "LlamaForCausalLM"

_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "tied": "tie_word_embeddings",
    "positions": "max_position_embeddings",
    "eps": "rms_norm_eps",
}
"""Field of a `ModelShape` -> its key in a config."""


def as_llama(model: Conversion) -> Conversion:
    """Write a Mistral as the Llama that it is: the tensors have the same names and meanings.

    Mistral's attention looks back `sliding_window` tokens, Llama's looks back at all. Up to that
    length they are the same, so the result states it as its longest sequence.
    """
    shape = model.shape
    if shape.architecture == LLAMA:
        return model
    note = f"architecture: {shape.architecture} is written as {LLAMA}"
    positions = min(shape.positions, shape.sliding_window or shape.positions)
    if positions < shape.positions:
        note += f", the same for sequences of up to {positions} tokens (its sliding window)"
    sizes = {"architecture": LLAMA, "sliding_window": None, "positions": positions}
    return model.after(note, sizes=sizes)


def with_rope(model: Conversion, other: ModelShape) -> Conversion:
    """Give the model another one's rotary positions: this CHANGES its function."""
    shape = model.shape
    if (shape.rope_base, shape.rope_scaling) == (other.rope_base, other.rope_scaling):
        return model
    note = (
        f"THE FUNCTION CHANGES: RoPE base {shape.rope_base:g} and scaling {shape.rope_scaling} "
        f"become base {other.rope_base:g} and scaling {other.rope_scaling}"
    )
    rope = {"rope_base": other.rope_base, "rope_scaling": other.rope_scaling}
    return model.after(note, sizes=rope)


def config_of(
    shape: ModelShape, document: Mapping[str, Any], dtype: str | None = None
) -> dict[str, Any]:
    """Return the config of a model that had the config `document` and is now of `shape`.

    Fields that no step changes stay as they are written, the dtype too where `dtype` is None.
    """
    new = dict(document)
    new |= {key: getattr(shape, field) for field, key in _KEYS.items()}
    new |= {"architectures": [shape.architecture], "model_type": DECODERS[shape.architecture]}
    if shape.architecture == LLAMA:
        new.pop("sliding_window", None)
    new.pop("layer_types", None)  # one a layer, all alike in these models
    before = stated_fields(document)
    if (before["rope_base"], before["rope_scaling"]) != (shape.rope_base, shape.rope_scaling):
        new.pop("rope_parameters", None)
        new |= {"rope_theta": shape.rope_base, "rope_scaling": shape.rope_scaling}
    if dtype is not None:
        new["torch_dtype" if "torch_dtype" in new else "dtype"] = dtype
    return new
