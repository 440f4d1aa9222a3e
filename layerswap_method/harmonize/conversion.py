"""How a model is written in another shape: a table of names, places and factors.

Steps (`steps.py`) only change this table. `make` then makes one tensor at a time, so the memory of
one tensor is enough for any model, and what no step changes is copied from file to file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from layerswap_method.checkpoint.checkpoint import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoint.config import ModelShape, read_shape
from layerswap_method.errors import InputError
from layerswap_method.harmonize import axes
from layerswap_method.harmonize.axes import Axis, axes_of, shape_of
from layerswap_method.tensor_names import split_layer

ZEROS = -1
"""A place that holds zeros."""


@dataclass(frozen=True)
class Conversion:
    """A model and what becomes of it."""

    name: str
    shape: ModelShape
    """Sizes and settings of the result."""

    origins: Mapping[str, str] = field(repr=False)
    """Tensor of the result -> tensor of the model that it is made of; no head where it is tied."""

    index: Mapping[Axis, Sequence[int]] = field(default_factory=dict, repr=False)
    """Axis -> for each place of the result the model's place, or `ZEROS`."""

    factors: Mapping[Axis, float] = field(default_factory=dict)
    """Axis -> what every tensor that has it is multiplied by."""

    zeros: frozenset[str] = frozenset()
    """Tensors of the result that are zero."""

    notes: tuple[str, ...] = ()
    """What was done, a sentence a step, for the log and the record."""

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
        indexed = any(axis in self.index for axis in axes_of(name))
        return name not in self.zeros and not indexed and self._factor(name) == 1

    def make(self, name: str, origin: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the result, of the model's tensor `origins[name]`, not modified.

        What is not multiplied keeps its bits and its dtype; what is multiplied is of float32 or
        float64, for the caller to round once.
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

    Raises `InputError` for an architecture that is not known, or files that disagree with their
    config: a tensor that is missing, unknown, or of another shape, in any layer.
    """
    shape = read_shape(checkpoint)
    tensors = {
        name: sizes
        for name, sizes in checkpoint.shapes.items()
        if not is_buffer(name) and not (shape.tied and is_head(name))
    }
    problems = list(_problems(shape, tensors))
    if problems:
        raise InputError.from_problems(checkpoint.name, problems)
    return Conversion(checkpoint.name, shape, {name: name for name in tensors})


def _problems(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    of_layers = axes.LAYER_TENSORS | {
        rest for layer, rest in map(split_layer, tensors) if layer == 0
    }
    wanted = [axes.EMBEDDING, axes.NORM, *([] if shape.tied else [axes.HEAD])]
    for layer in range(shape.layers):
        wanted += [f"model.layers.{layer}.{rest}" for rest in sorted(of_layers)]
    missing = [name for name in wanted if name not in tensors]
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
