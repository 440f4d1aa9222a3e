"""Columns of a profile: which layer and parameter a tensor is. Knows names and their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from layerswap_method.algorithm.tensor_names import layer_part, outside_decoder, split_layer

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
_PREFIX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.\d+\.")


def place_of(name: str) -> tuple[int | None, str]:
    """Return (decoder layer, parameter) of a tensor; (None, its name) outside the layers.

    The experts of a layer, one tensor each, are one parameter: ``mlp.experts.*.up_proj``.

    >>> place_of("model.layers.3.self_attn.q_proj.weight")
    (3, 'self_attn.q_proj')
    """
    layer, rest = (None, name) if outside_decoder(name) else split_layer(name)
    if layer is None:
        return None, name
    return layer, _EXPERT.sub(r"\1.*.", rest.removesuffix(".weight"))


def places_of(names: Sequence[str]) -> dict[str, tuple[int | None, str]]:
    """Return name -> `place_of`; parameters of two stacks (T5) are told apart by the stack."""
    places = {name: place_of(name) for name in names}
    stacks = {name: _stack(name) for name, (layer, _) in places.items() if layer is not None}
    if len(set(stacks.values())) > 1:
        for name, stack in stacks.items():
            layer, parameter = places[name]
            places[name] = (layer, f"{stack}.{parameter}")
    return places


def in_order(parameters: Iterable[str], definition: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """Return parameters in the paper's order, attention before MLP; no name twice.

    Args:
        parameters: as `place_of` names them.
        definition: the parameters of a layer as mergekit's architecture information lists them;
            asked for only where a name is not in the paper's order. Those come last in their part.
    """
    found = list(dict.fromkeys(parameters))
    places = {name: _place(name) for name in found}
    listed: dict[str, int] = {}
    if any(place is None for _, place in places.values()):
        listed = {name: i for i, name in enumerate(definition())}

    def key(name: str) -> tuple[object, ...]:
        part, place = places[name]
        if place is not None:
            return (_stack_of_parameter(name), part, 0, place, name)
        return (_stack_of_parameter(name), part, 1, listed.get(name, len(listed)), "")

    return tuple(sorted(found, key=key))


def definition_of(folder: Path) -> list[str]:
    """Return a layer's parameters as mergekit's definition of a checkpoint's class lists them.

    Empty where mergekit has none, or one that does not fit the config.
    """
    from transformers import AutoConfig

    from layerswap_method.mergekit_plugin.definitions import architecture_of

    try:
        config = AutoConfig.from_pretrained(folder)
        architecture = architecture_of(config)
        modules = () if architecture is None else architecture.modules.values()
        weights = [
            weight.name
            for module in modules
            if module.architecture.num_layers(config)
            for weight in module.architecture.layer_weights(0, config) or ()
        ]
    except Exception:  # of transformers or mergekit: the order of the file will do
        return []
    return [parameter for layer, parameter in places_of(weights).values() if layer is not None]


def _place(parameter: str) -> tuple[int, int | None]:
    part = layer_part(f"layers.0.{parameter.removeprefix(_stack_of_parameter(parameter))}")
    last = parameter.rsplit(".", 1)[-1]
    order = _ORDER.get(part, ())
    return _PARTS.index(part), order.index(last) if last in order else None


def _stack(name: str) -> str:
    found = _PREFIX.search(name)
    return name[: found.start()] if found else ""


def _stack_of_parameter(parameter: str) -> str:
    return next((p for p in ("encoder.", "decoder.") if parameter.startswith(p)), "")
