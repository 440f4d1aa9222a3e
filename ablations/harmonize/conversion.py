"""The conversion of a model to another shape: a table of names, places and factors by axis.

Steps (`steps.py`) only change this table. `make` then makes one tensor at a time, so the memory of
one tensor is enough for any model, and what no step changes is copied from file to file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from ablations.harmonize.shape import ModelShape, read_shape
from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.errors import InputError
from layerswap_method.tensor_names import split_layer

ZEROS = -1
"""A place that holds zeros."""

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

Axis = (
    Literal["vocab", "writes", "reads", "norm", "final_norm", "neurons"]
    | Literal["queries", "keys", "values", "attended", "head"]
)
"""The things that an axis counts.

Values of the residual stream that a tensor `writes`, or `reads` behind a norm; weights of a `norm`;
`queries`, `keys`, `values` of all heads, one head after the other, with the query heads of one
key-value head together; what all query heads give (`attended`); values of one `head`.
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

_LAYER_TENSORS = frozenset(
    f"{module}.weight" for module in _AXES if not module.startswith(_NOT_IN_EVERY_LAYER)
)
"""Names, after the layer's number, of the tensors that every layer has."""


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
        "vocab": shape.vocab,
        "writes": shape.hidden,
        "reads": shape.hidden,
        "norm": shape.hidden,
        "final_norm": shape.hidden,
        "neurons": shape.intermediate,
        "queries": queries,
        "attended": queries,
        "keys": keys,
        "values": keys,
        "head": shape.head_dim,
    }
    return tuple(sizes[axis] for axis in axes_of(name))


@dataclass(frozen=True)
class Conversion:
    """A model and what becomes of it: a result of `shape`, and `notes`, one sentence per step.

    `origins`: tensor of the result -> tensor of the model that it is made of; no head where it is
    tied. `index`: axis -> for each place of the result the model's place, or `ZEROS`. `factors`:
    axis -> what every tensor that has it is multiplied by. `zeros`: tensors that are zero.
    """

    name: str
    shape: ModelShape
    origins: Mapping[str, str] = field(repr=False)
    index: Mapping[Axis, Sequence[int]] = field(default_factory=dict, repr=False)
    factors: Mapping[Axis, float] = field(default_factory=dict)
    zeros: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def after(self, note: str, *, sizes: Mapping[str, Any], **changes: Any) -> Conversion:
        """Return the conversion with one more step: new fields of the shape, and `changes`.

        Axes of `index` and `factors` are added to those that are there.
        """
        for name in ("index", "factors"):
            changes[name] = {**getattr(self, name), **changes.get(name, {})}
        shape = self.shape.model_copy(update=dict(sizes))
        return replace(self, shape=shape, notes=(*self.notes, note), **changes)

    def is_copy(self, name: str) -> bool:
        """Return whether a tensor of the result is a tensor of the model as it is."""
        is_indexed = any(axis in self.index for axis in axes_of(name))
        return name not in self.zeros and not is_indexed and self._factor(name) == 1

    def make(self, name: str, origin: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the result, of the model's tensor `origins[name]`, not modified.

        What is multiplied is of float32 or float64, for the caller to round once.
        """
        if name in self.zeros:
            return origin.new_zeros(shape_of(name, self.shape))
        result = origin
        for place, axis in enumerate(axes_of(name)):
            if axis in self.index:
                index = torch.tensor(self.index[axis])
                result = result.index_select(place, index.clamp(min=0))
                result.index_fill_(place, torch.nonzero(index == ZEROS).flatten(), 0)
        factor = self._factor(name)
        if factor == 1:
            return result
        compute = torch.promote_types(result.dtype, torch.float32)
        return result.to(compute, copy=True).mul_(factor)

    def _factor(self, name: str) -> float:
        return math.prod(self.factors.get(axis, 1.0) for axis in axes_of(name))


def read_conversion(checkpoint: Checkpoint) -> Conversion:
    """Return the conversion of a checkpoint to itself; only headers are read.

    Raises `InputError` for an unknown architecture, or files that disagree with their config.
    """
    shape = read_shape(checkpoint)
    tensors = {
        name: sizes
        for name, sizes in checkpoint.shapes.items()
        if not is_buffer(name) and not (shape.tied and is_head(name))
    }
    problems = list(_problems(shape, tensors))
    InputError.raise_any(checkpoint.name, problems)
    return Conversion(checkpoint.name, shape, {name: name for name in tensors})


def _problems(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    first_layer = {suffix for layer, suffix in map(split_layer, tensors) if layer == 0}
    suffixes = sorted(_LAYER_TENSORS | first_layer)
    names = [EMBEDDING, NORM] if shape.tied else [EMBEDDING, NORM, HEAD]
    for layer in range(shape.layers):
        names += [f"model.layers.{layer}.{suffix}" for suffix in suffixes]
    missing = [name for name in names if name not in tensors]
    if missing:
        yield f"the weights lack {name_list(missing)}; download or copy it again"
    for name, sizes in tensors.items():
        try:
            expected = shape_of(name, shape)
        except InputError as error:
            yield error.message
            continue
        if sizes != expected:
            yield f"{name} is {list(expected)} by config.json, and the weights hold {list(sizes)}"
