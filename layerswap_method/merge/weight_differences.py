"""Where two checkpoints differ, and by how much. Knows files; holds a block of a tensor at a time.

For a merge of ours and a published one: whether they are equal, and if not, which layers differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from layerswap_method.algorithm.layer_lists import format_layers
from layerswap_method.algorithm.tensor_names import decoder_layer
from layerswap_method.checkpoints.headers import Checkpoint, is_buffer, is_head, name_list
from layerswap_method.checkpoints.spans import read_span, torch_dtype
from layerswap_method.checkpoints.stored import StoredTensor, open_stored

_VALUES = 1 << 20
"""Values of each checkpoint in memory at a time."""

_SHOWN = 5
"""Tensors named in one line of text."""


@dataclass(frozen=True)
class Difference:
    """One tensor that differs in its values."""

    name: str

    values: int
    """How many values differ."""

    of: int
    """Values of the tensor."""

    largest: float
    """The largest absolute difference; NaN where a value is NaN on one side only."""

    relative: float
    """``||ours - theirs|| / ||theirs||``, Frobenius norms; infinite where theirs is 0."""

    @property
    def layer(self) -> int | None:
        """Return the 0-based decoder layer; None outside the layers."""
        return decoder_layer(self.name)


@dataclass(frozen=True)
class Comparison:
    """What two checkpoints have in common."""

    tensors: int
    """Tensors that both have in one shape."""

    differences: tuple[Difference, ...]
    """Those of them that differ, in the order of their names."""

    ours_only: tuple[str, ...]
    """Tensors that the second checkpoint lacks."""

    theirs_only: tuple[str, ...]
    """Tensors that the first checkpoint lacks."""

    shapes: tuple[str, ...]
    """Tensors that both have, in different shapes."""

    dtypes: tuple[str, ...]
    """Tensors stored in different dtypes; their values are compared, not their bytes."""

    @property
    def is_equal(self) -> bool:
        """Return whether the checkpoints are one model, stored in the same dtypes."""
        return not (
            self.differences or self.ours_only or self.theirs_only or self.shapes or self.dtypes
        )


def compare(
    ours: Checkpoint, theirs: Checkpoint, advance: Callable[[int], object] = lambda count: None
) -> Comparison:
    """Compare every tensor of two checkpoints.

    A tied output embedding may be stored on one side only: then it is the input embedding. Buffers
    that are no weights are left out.

    Args:
        ours: one.
        theirs: the other, against which differences are measured.
        advance: told of every byte of `ours` that was compared.

    Raises:
        InputError: if a file is gone, cut short, or was written anew.
    """
    held, other = _weights(ours), _weights(theirs)
    _add_tied_head(ours, held, other)
    _add_tied_head(theirs, other, held)
    common = sorted(held.keys() & other.keys())
    shapes = [name for name in common if held[name].shape != other[name].shape]
    same = [name for name in common if name not in shapes]
    found = []
    for name in same:
        difference = _difference(name, held[name], other[name])
        if difference is not None:
            found.append(difference)
        advance(held[name].nbytes)
    return Comparison(
        tensors=len(same),
        differences=tuple(found),
        ours_only=tuple(sorted(held.keys() - other.keys())),
        theirs_only=tuple(sorted(other.keys() - held.keys())),
        shapes=tuple(shapes),
        dtypes=tuple(name for name in same if held[name].dtype != other[name].dtype),
    )


def weight_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the tensors that are compared."""
    return sum(tensor.nbytes for tensor in _weights(checkpoint).values())


def describe(found: Comparison, ours: str, theirs: str) -> Iterator[str]:
    """Yield what was found, in lines of text.

    Args:
        found: from `compare`.
        ours: name of the first checkpoint.
        theirs: name of the second.
    """
    if found.is_equal:
        yield f"equal: all {found.tensors} tensors of {ours} and {theirs}, bit for bit"
        return
    yield f"{ours} and {theirs} are not equal"
    for what, names in (
        (f"only in {ours}", found.ours_only),
        (f"only in {theirs}", found.theirs_only),
        ("other shapes", found.shapes),
        ("other dtypes (compared by value)", found.dtypes),
    ):
        if names:
            yield f"  {what}: {len(names)} tensors: {name_list(names, _SHOWN)}"
    if not found.differences:
        yield f"  the values of all {found.tensors} common tensors are equal"
        return
    layers: dict[int | None, list[Difference]] = {}
    for difference in found.differences:
        layers.setdefault(difference.layer, []).append(difference)
    numbered = sorted(layer for layer in layers if layer is not None)
    yield (
        f"  {len(found.differences)} of {found.tensors} common tensors differ; layers "
        f"(0-based): {format_layers(numbered) or 'none'}; outside the layers: "
        f"{name_list([each.name for each in layers.get(None, [])], _SHOWN) or 'none'}"
    )
    for layer in [*numbered, *([None] if None in layers else [])]:
        where = "outside the layers" if layer is None else f"layer {layer}"
        yield f"  {where}: {_summary(layers[layer])}"


def as_json(found: Comparison) -> dict[str, Any]:
    """Return what was found as plain values; numbers that are not finite are written as text."""
    return {
        "equal": found.is_equal,
        "tensors": found.tensors,
        "differences": [
            {
                "name": each.name,
                "layer": each.layer,
                "values": each.values,
                "of": each.of,
                "largest": _plain(each.largest),
                "relative": _plain(each.relative),
            }
            for each in found.differences
        ],
        "ours_only": list(found.ours_only),
        "theirs_only": list(found.theirs_only),
        "shapes": list(found.shapes),
        "dtypes": list(found.dtypes),
    }


def _summary(found: Sequence[Difference]) -> str:
    most = max(found, key=lambda each: (math.isnan(each.relative), each.relative))
    largest = max(found, key=lambda each: (math.isnan(each.largest), each.largest)).largest
    return (
        f"{len(found)} tensors, largest difference {largest:.3g}, relative norm up to "
        f"{most.relative:.3g} ({most.name})"
    )


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _weights(checkpoint: Checkpoint) -> dict[str, StoredTensor]:
    return {name: at for name, at in checkpoint.tensors.items() if not is_buffer(name)}


def _add_tied_head(
    checkpoint: Checkpoint, held: dict[str, StoredTensor], other: dict[str, StoredTensor]
) -> None:
    """Give a checkpoint that ties its output embedding the one that the other side stores."""
    if not checkpoint.config.tie_word_embeddings or checkpoint.embedding is None:
        return
    for name in other:
        if is_head(name):
            held.setdefault(name, checkpoint.tensors[checkpoint.embedding])


def _difference(name: str, ours: StoredTensor, theirs: StoredTensor) -> Difference | None:
    """Return how two tensors of one shape differ; None where they are equal."""
    count = math.prod(ours.shape)
    differing, largest, squares, norm = 0, 0.0, 0.0, 0.0
    with open_stored(ours) as our_file, open_stored(theirs) as their_file:
        for start in range(0, count, _VALUES):
            size = min(_VALUES, count - start)
            one, other = (
                _read(opened, tensor, start, size)
                for opened, tensor in ((our_file, ours), (their_file, theirs))
            )
            their_values = other.double()
            norm += float(their_values.square().sum())
            if one.dtype == other.dtype:
                unequal = _bits(one) != _bits(other)
            else:
                unequal = one.double() != their_values
            if bool(unequal.any()):
                differing += int(unequal.sum())
                apart = (one.double() - their_values)[unequal].abs()
                largest = float(torch.maximum(apart.max(), torch.tensor(largest).double()))
                squares += float(apart.square().sum())
    if not differing:
        return None
    relative = math.sqrt(squares) / math.sqrt(norm) if norm else (math.inf if squares else 0.0)
    return Difference(name, differing, count, largest, relative)


def _read(opened: Any, tensor: StoredTensor, start: int, size: int) -> torch.Tensor:
    values = torch.empty(size, dtype=torch_dtype(tensor.torch_name))
    read_span(opened, tensor, start, values)
    return values


def _bits(values: torch.Tensor) -> torch.Tensor:
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return values.view(sizes[values.dtype.itemsize])
