"""More layers of a model that computes the same. Knows layers; not their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from layerswap_method.errors import InputError
from layerswap_method.harmonize.axes import axes_of
from layerswap_method.harmonize.model import LazyTensor, Model
from layerswap_method.layer_lists import format_layers
from layerswap_method.tensor_names import split_layer

if TYPE_CHECKING:
    import torch


def even_places(layers: int, depth: int) -> tuple[int, ...]:
    """Return where the layers of a model go in a deeper one: spread evenly, the ends at the ends.

    Layer j of L goes to round(j (D - 1) / (L - 1)) of D, halves up.

    >>> even_places(4, 6)
    (0, 2, 3, 5)
    """
    if layers == 1:
        return (0,)
    return tuple(
        (2 * layer * (depth - 1) + layers - 1) // (2 * (layers - 1)) for layer in range(layers)
    )


def deepen(model: Model, depth: int, inserted: Sequence[int] | None = None) -> Model:
    """Return the model with `depth` layers; the new ones add nothing. All bits are kept.

    A new layer is a copy of the layer below it (the lowest ones: of the layer above) whose output
    projections `o_proj` and `down_proj` are zero, so that it adds nothing to the residual stream.

    Args:
        model: what is deepened.
        depth: not fewer than it has.
        inserted: which layers of the result are new; None spreads them evenly (`even_places`).

    Raises:
        InputError: where `inserted` is not as many layers as are missing, or not below `depth`.
    """
    layers = model.shape.layers
    if depth == layers and not inserted:
        return model
    if inserted is None:
        old = even_places(layers, depth)
    else:
        _check_inserted(model, depth, inserted)
        old = tuple(layer for layer in range(depth) if layer not in inserted)
    origin = {place: layer for layer, place in enumerate(old)}
    parts: dict[int, dict[str, LazyTensor]] = {}
    before: dict[str, LazyTensor] = {}
    for name, tensor in model.tensors.items():
        layer, rest = split_layer(name)
        (before if layer is None else parts.setdefault(layer, {}))[rest] = tensor
    tensors = dict(before)
    below = 0
    for place in range(depth):
        below = origin.get(place, below)
        for rest, tensor in parts[below].items():
            is_output = place not in origin and axes_of(rest)[0] == "writes"
            tensors[f"model.layers.{place}.{rest}"] = _zeros(tensor) if is_output else tensor
    new = [place for place in range(depth) if place not in origin]
    listed = format_layers(new)
    note = f"depth: {layers} become {depth} layers; new, and adding nothing: {listed}"
    return model.changed(tensors, note, layers=depth)


def _check_inserted(model: Model, depth: int, inserted: Sequence[int]) -> None:
    missing = depth - model.shape.layers
    if len(set(inserted)) != missing or not all(0 <= layer < depth for layer in inserted):
        raise InputError(
            f"--align-depth: {model.name} needs {missing} new layers, each from 0 to {depth - 1}, "
            f"and {len(set(inserted))} are given"
        )


def _zeros(tensor: LazyTensor) -> LazyTensor:
    return LazyTensor(tensor.shape, tensor.dtype, (), partial(_make_zeros, tensor))


def _make_zeros(tensor: LazyTensor) -> torch.Tensor:
    import torch

    from layerswap_method.checkpoint.stored import DTYPES, torch_dtype

    return torch.zeros(tensor.shape, dtype=torch_dtype(DTYPES[tensor.dtype].torch_name or ""))
