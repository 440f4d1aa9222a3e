"""Places of an axis taken in another order, several times, or as zeros. Knows lazy tensors.

Padding, copying and permuting are this one operation; what they keep of a model's function depends
on which axes they are done to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerswap_method.harmonize.axes import Axis, axes_of
from layerswap_method.harmonize.model import LazyTensor, Model, wide

if TYPE_CHECKING:
    import torch

ZEROS = -1
"""A place that holds zeros."""


@dataclass(frozen=True)
class Taken:
    """What an axis becomes."""

    places: Sequence[int]
    """For each new place, the old one, or `ZEROS`."""

    factor: float = 1.0
    """What every value is multiplied by."""


def take(tensor: LazyTensor, axis: int, taken: Taken) -> LazyTensor:
    """Return the tensor with the places of one axis taken anew.

    Without a factor, values keep their bits.
    """
    shape = tuple(len(taken.places) if i == axis else size for i, size in enumerate(tensor.shape))
    return tensor.then(lambda values: _taken(values, axis, taken), shape)


def taken_all(model: Model, axes: Mapping[Axis, Taken]) -> Iterator[tuple[str, LazyTensor]]:
    """Yield every tensor of a model, with each of its axes that is in `axes` taken anew."""
    for name, tensor in model.tensors.items():
        new = tensor
        for place, axis in enumerate(axes_of(name)):
            if axis in axes:
                new = take(new, place, axes[axis])
        yield name, new


def padded(size: int, new: int) -> list[int]:
    """Return the places of an axis that keeps its values and goes on with zeros."""
    return [*range(size), *[ZEROS] * (new - size)]


def spread(places: Sequence[int], width: int) -> list[int]:
    """Return the places of values, for places of blocks of `width` values each."""
    return [
        block * width + i if block != ZEROS else ZEROS for block in places for i in range(width)
    ]


def _taken(values: torch.Tensor, axis: int, taken: Taken) -> torch.Tensor:
    import torch

    index = torch.tensor(taken.places)
    result = values.index_select(axis, index.clamp(min=0))
    result.index_fill_(axis, torch.nonzero(index == ZEROS).flatten(), 0)
    return result if taken.factor == 1 else wide(result).mul_(taken.factor)
