"""What each axis of a decoder's tensors counts. Knows names; not sizes, not models.

A transformation of the model makes some of its axes wider. This table says where
each axis occurs, so that no transformation lists tensors itself.
"""

from __future__ import annotations

from typing import Literal

from layerswap_method.algorithm.tensor_names import split_layer
from layerswap_method.errors import InputError

Axis = Literal["vocab", "writes", "reads", "norm", "heads", "kv_heads", "head", "neurons"]
"""What an axis counts.

`writes`: values that a tensor adds to the residual stream. `reads`: values of the normed residual
stream that it takes in. `norm`: a norm's weights, one for each value of the residual stream.
`heads`, `kv_heads`: values of all heads, one head after the other; the query heads of one key-value
head stand together. `head`: values of one head, the same for all. `neurons`: of the MLP.
"""

_AXES: dict[str, tuple[Axis, ...]] = {
    "model.embed_tokens.weight": ("vocab", "writes"),
    "self_attn.q_proj.weight": ("heads", "reads"),
    "self_attn.q_proj.bias": ("heads",),
    "self_attn.k_proj.weight": ("kv_heads", "reads"),
    "self_attn.k_proj.bias": ("kv_heads",),
    "self_attn.v_proj.weight": ("kv_heads", "reads"),
    "self_attn.v_proj.bias": ("kv_heads",),
    "self_attn.q_norm.weight": ("head",),
    "self_attn.k_norm.weight": ("head",),
    "self_attn.o_proj.weight": ("writes", "heads"),
    "self_attn.o_proj.bias": ("writes",),
    "mlp.gate_proj.weight": ("neurons", "reads"),
    "mlp.gate_proj.bias": ("neurons",),
    "mlp.up_proj.weight": ("neurons", "reads"),
    "mlp.up_proj.bias": ("neurons",),
    "mlp.down_proj.weight": ("writes", "neurons"),
    "mlp.down_proj.bias": ("writes",),
    "input_layernorm.weight": ("norm",),
    "post_attention_layernorm.weight": ("norm",),
    "model.norm.weight": ("norm",),
    "lm_head.weight": ("vocab", "reads"),
}
"""Name, or what follows the layer's number in it -> what its axes count, in order.

A tied embedding is read by the head as well: `Model.untied` before what treats the two apart.
"""


_OPTIONAL = (".bias", "_norm.weight")
"""How tensors of a layer end that not every model has."""

LAYER_TENSORS = frozenset(
    name for name in _AXES if name.startswith(("self_attn", "mlp")) and not name.endswith(_OPTIONAL)
) | {"input_layernorm.weight", "post_attention_layernorm.weight"}
"""What follows the layer's number in the names of the tensors that each layer has."""


def axes_of(name: str) -> tuple[Axis, ...]:
    """Return what the axes of a tensor count, in order.

    Raises:
        InputError: for a tensor that no known model has.
    """
    found = _AXES.get(split_layer(name)[1])
    if found is None:
        raise InputError(f"{name}: no tensor of Llama, Mistral, Qwen2 or Qwen3 has this name")
    return found
