"""Layer and part (attention, feed-forward, norm) of a tensor, read off its name."""

from __future__ import annotations

import re
from typing import Literal

Part = Literal["attention", "mlp", "norm", "other"]
"""The part of a decoder layer that a tensor belongs to."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.(.+)$")
_ATTENTION = re.compile(r"attn|attention")
_MLP = re.compile(r"mlp|feed_forward|ffn|moe|experts|^fc\d|shared_expert")
_NORM = re.compile(r"norm|^ln_?\w*$|layernorm")

# Not "encoder": ChatGLM calls its decoder so. "mtp" layers predict further tokens (Qwen3-Next).
_OUTSIDE_DECODER = re.compile(
    r"vision|visual|image|audio|speech|projector|resampler|perceiver|(?:^|\.)shared$|(?:^|\.)mtp"
    r"|(?:^|\.)(?:[av]pm|qformer|talker|tts|token2wav|code2wav)(?:\.|$)"
)

_CONTAINER = "norm_attn_norm."
"""DBRX's module that holds the attention and both norms of a layer."""


def outside_decoder(name: str) -> bool:
    """Return whether a module or tensor name belongs to no text decoder (vision tower, ...)."""
    return bool(_OUTSIDE_DECODER.search(name.lower()))


def split_layer(name: str) -> tuple[int | None, str]:
    """Return (0-based layer index, rest of the name), or (None, name) outside the layers.

    >>> split_layer("model.layers.3.self_attn.q_proj.weight")
    (3, 'self_attn.q_proj.weight')
    """
    match = _LAYER.search(name)
    return (int(match[1]), match[2]) if match else (None, name)


def decoder_layer(name: str, num_layers: int | None = None) -> int | None:
    """Return the 0-based layer of the text decoder that a tensor is in; None for all others.

    Layers from `num_layers` on, which predict further tokens, are among the others.
    """
    layer = None if outside_decoder(name) else split_layer(name)[0]
    is_behind = layer is not None and num_layers is not None and layer >= num_layers
    return None if is_behind else layer


def is_norm(name: str) -> bool:
    """Return whether a tensor is a norm's, in a layer's attention (`self_attn.q_norm`) or not."""
    rest = split_layer(name)[1].lower().removeprefix(_CONTAINER)
    return any(_NORM.search(part) for part in rest.split("."))


def layer_part(name: str) -> Part:
    """Return the part of a layer that the tensor `name` (full or below its layer) belongs to.

    The first component after the layer index decides, so `self_attn.q_norm` is attention and
    `post_attention_layernorm` is a norm (arXiv 2410.01335, Algorithm 1).
    """
    _, rest = split_layer(name)
    head = rest.lower().removeprefix(_CONTAINER).split(".", 1)[0]
    if _NORM.search(head):
        return "norm"
    if _ATTENTION.search(head):
        return "attention"
    if _MLP.search(head):
        return "mlp"
    return "other"
