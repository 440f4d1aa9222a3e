"""Columns of a profile: which layer and parameter a tensor is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from layerswap_method.tensor_names import layer_part, outside_decoder, split_layer

_ORDER = {
    "attention": (
        *("q_proj", "wq", "q", "q_a_proj", "q_b_proj"),
        *("k_proj", "wk", "k", "kv_a_proj_with_mqa", "kv_b_proj"),
        *("v_proj", "wv", "v", "qkv_proj", "qkv", "query_key_value", "c_attn", "Wqkv", "wqkv"),
        *("o_proj", "wo", "o", "out_proj", "dense", "c_proj"),
    ),
    "mlp": (
        *("gate_proj", "w1", "wi_0", "up_proj", "w3", "wi_1", "wi", "gate_up_proj"),
        *("fc1", "c_fc", "dense_h_to_4h", "down_proj", "w2", "wo", "fc2", "c_proj"),
        *("dense_4h_to_h",),
    ),
}
"""Last parts of names in the paper's order: q, k, v, o, gate, up, down (its w1, w3, w2)."""

_PARTS = ("attention", "mlp", "norm", "other")
_EXPERT = re.compile(r"(\bexperts)\.\d+\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.\d+\.")


def places_of(names: Sequence[str]) -> dict[str, tuple[int | None, str]]:
    """Return name -> (decoder layer, parameter) of tensors; (None, the name) outside the layers.

    The experts of a layer, one tensor each, are one parameter: ``mlp.experts.*.up_proj``.
    Parameters of two stacks (T5) are told apart by the stack.

    >>> places_of(["model.layers.3.self_attn.q_proj.weight"]).popitem()[1]
    (3, 'self_attn.q_proj')
    """
    places: dict[str, tuple[int | None, str]] = {}
    stacks = {}
    for name in names:
        layer, rest = (None, name) if outside_decoder(name) else split_layer(name)
        if layer is None:
            places[name] = (None, name)
            continue
        places[name] = (layer, _EXPERT.sub(r"\1.*.", rest.removesuffix(".weight")))
        stacks[name] = _LAYER.split(name, maxsplit=1)[0]
    if len(set(stacks.values())) > 1:
        for name, stack in stacks.items():
            layer, parameter = places[name]
            places[name] = (layer, f"{stack}.{parameter}")
    return places


def in_order(parameters: Iterable[str]) -> tuple[str, ...]:
    """Return parameters in the paper's order, attention before MLP; no name twice.

    Names that the paper does not have come last in their part, in the order given.

    Args:
        parameters: as `places_of` names them.
    """
    return tuple(sorted(dict.fromkeys(parameters), key=_place))


def _place(parameter: str) -> tuple[object, ...]:
    # T5 has layers in its layers, and two stacks of them.
    rest = split_layer(parameter)[1].removeprefix("encoder.").removeprefix("decoder.")
    stack = parameter.removesuffix(rest)
    part = layer_part(f"layers.0.{rest}")
    last = rest.rsplit(".", 1)[-1]
    order = _ORDER.get(part, ())
    if last in order:
        return stack, _PARTS.index(part), order.index(last), parameter
    return stack, _PARTS.index(part), len(order)
