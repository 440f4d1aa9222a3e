"""What each axis of a decoder's tensors counts, so that no step lists tensors itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from layerswap_method.checkpoint.config import ModelShape
from layerswap_method.errors import InputError
from layerswap_method.tensor_names import split_layer

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

Axis = (
    Literal["vocab", "writes", "reads", "norm", "final_norm", "neurons"]
    | Literal["queries", "keys", "values", "attended", "head"]
)
"""What an axis counts.

`writes`: values that a tensor adds to the residual stream. `reads`: values of the normed residual
stream that it takes in. `norm`, `final_norm`: weights of a norm, one for each value of the residual
stream. `queries`, `keys`, `values`: values of all heads, one head after the other; the query heads
of one key-value head stand together. `attended`: what all query heads give. `head`: values of one
head, the same for all. `neurons`: of the MLP.
"""

_AXES: dict[str, tuple[Axis, ...]] = {
    "model.embed_tokens": ("vocab", "writes"),
    "self_attn.q_proj": ("queries", "reads"),
    "self_attn.k_proj": ("keys", "reads"),
    "self_attn.v_proj": ("values", "reads"),
    "self_attn.q_norm": ("head",),
    "self_attn.k_norm": ("head",),
    "self_attn.o_proj": ("writes", "attended"),
    "mlp.gate_proj": ("neurons", "reads"),
    "mlp.up_proj": ("neurons", "reads"),
    "mlp.down_proj": ("writes", "neurons"),
    "input_layernorm": ("norm",),
    "post_attention_layernorm": ("norm",),
    "model.norm": ("final_norm",),
    "lm_head": ("vocab", "reads"),
}
"""Module, without its layer -> what the axes of its weight count; a bias has the first of them."""

_NOT_IN_EVERY_LAYER = ("model.", "lm_head", "self_attn.q_norm", "self_attn.k_norm")

LAYER_TENSORS = frozenset(
    f"{module}.weight" for module in _AXES if not module.startswith(_NOT_IN_EVERY_LAYER)
)
"""What follows the layer's number in the names of the tensors that every layer has."""


def axes_of(name: str) -> tuple[Axis, ...]:
    """Return what the axes of a tensor count. Raises for a tensor that no known model has."""
    module, _, kind = split_layer(name)[1].rpartition(".")
    axes = _AXES.get(module)
    if axes is not None and kind == "weight":
        return axes
    if axes is not None and kind == "bias" and module.endswith("_proj"):
        return axes[:1]
    raise InputError(f"{name}: no tensor of Llama, Mistral, Qwen2 or Qwen3 has this name")


def shape_of(name: str, shape: ModelShape) -> tuple[int, ...]:
    """Return the shape that a tensor has in a model of `shape`. Raises as `axes_of`."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: Mapping[Axis, int] = {
        **{"vocab": shape.vocab, "writes": shape.hidden, "reads": shape.hidden},
        **{"norm": shape.hidden, "final_norm": shape.hidden, "neurons": shape.intermediate},
        **{"queries": queries, "attended": queries, "keys": keys, "values": keys},
        "head": shape.head_dim,
    }
    return tuple(sizes[axis] for axis in axes_of(name))
