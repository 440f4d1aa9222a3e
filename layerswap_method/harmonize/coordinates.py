"""Other coordinates for one model: norms folded, another basis, another order of neurons and heads.

Every layer reads the residual stream through an RMSNorm and adds to it. With the norms' weights
folded into the matrices that read (SliceGPT, arXiv 2401.15024, section 3), an RMSNorm is
``x / rms(x)``, which is the same in every orthonormal basis: the stream can be rotated, and the
model computes what it did. Neurons, and heads as far as they share no key head, can stand in any
order. Knows one model; not what its coordinates are chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from layerswap_method.harmonize.axes import Axis, axes_of
from layerswap_method.harmonize.model import NORM, LazyTensor, Model, join, wide
from layerswap_method.tensor_names import split_layer

_STREAM: tuple[Axis, ...] = ("writes", "reads")
"""Axes that stand in the basis of the residual stream, once the norms are folded."""


@dataclass(frozen=True)
class LayerOrder:
    """In which order the units of one layer are to stand: new place -> old place."""

    neurons: torch.Tensor | None = None
    """Of the MLP; None as they are."""

    heads: torch.Tensor | None = None
    """Query heads; those of one key head must stay together. None as they are."""

    kv_heads: torch.Tensor | None = None
    """Key heads; None as they are."""


def fold_norms(model: Model) -> Model:
    """Return the model with the weights of its norms in the matrices behind them, and ones there.

    The head behind the final norm changes and the embedding does not: a tied one is untied.
    """
    given = model.untied()

    def fold(name: str, tensor: LazyTensor) -> LazyTensor:
        axes = axes_of(name)
        if "reads" in axes:
            norm = given.tensors[_norm_before(name)]
            return join(lambda weight, scale: wide(weight) * wide(scale), tensor, norm)
        return tensor.then(torch.ones_like) if axes == ("norm",) else tensor

    tensors = {name: fold(name, tensor) for name, tensor in given.tensors.items()}
    return given.changed(tensors, "norm weights folded into the matrices that read through them")


def rotate(model: Model, rotation: torch.Tensor) -> Model:
    """Return the model with its residual stream in the basis ``x @ rotation``.

    Args:
        model: one whose norms are folded.
        rotation: [hidden, hidden], orthogonal, float64.
    """

    def turn(name: str, tensor: LazyTensor) -> LazyTensor:
        places = [place for place, axis in enumerate(axes_of(name)) if axis in _STREAM]
        if not places:
            return tensor
        (place,) = places

        def turned(old: torch.Tensor) -> torch.Tensor:
            values = wide(old)
            matrix = rotation.to(values.dtype)
            return values @ matrix if place == values.ndim - 1 else matrix.T @ values

        return tensor.then(turned)

    tensors = {name: turn(name, tensor) for name, tensor in model.tensors.items()}
    return model.changed(tensors, "residual stream rotated")


def reorder(model: Model, orders: Mapping[int, LayerOrder]) -> Model:
    """Return the model with the units of each layer in a new order.

    Args:
        model: any.
        orders: layer -> order; other layers stay as they are.
    """
    head_dim = model.shape.head_dim

    def move(name: str, tensor: LazyTensor) -> LazyTensor:
        layer, _ = split_layer(name)
        if layer is None or layer not in orders:
            return tensor
        places = _places(orders[layer], head_dim)
        for axis, counted in enumerate(axes_of(name)):
            if counted in places:
                tensor = tensor.then(partial(torch.index_select, dim=axis, index=places[counted]))
        return tensor

    tensors = {name: move(name, tensor) for name, tensor in model.tensors.items()}
    return model.changed(tensors, "heads and neurons put in another order")


def _places(order: LayerOrder, head_dim: int) -> Mapping[Axis, torch.Tensor]:
    """Return axis -> order of its values; a head's values stay together, as RoPE needs them."""
    found: dict[Axis, torch.Tensor] = {}
    if order.neurons is not None:
        found["neurons"] = order.neurons
    within = torch.arange(head_dim)
    if order.heads is not None:
        found["heads"] = (order.heads[:, None] * head_dim + within).flatten()
    if order.kv_heads is not None:
        found["kv_heads"] = (order.kv_heads[:, None] * head_dim + within).flatten()
    return found


def _norm_before(name: str) -> str:
    """Return the norm through which a tensor reads the residual stream."""
    layer, rest = split_layer(name)
    if layer is None:
        return NORM
    kind = "input" if rest.startswith("self_attn") else "post_attention"
    return f"{name.removesuffix(rest)}{kind}_layernorm.weight"
