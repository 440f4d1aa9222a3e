"""`layerswap verify`: differences of two checkpoints, by tensor and layer, in little memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ablations.machine.progress import byte_progress
from ablations.models.find import open_model
from layerswap_method.checkpoint.checkpoint import is_buffer, is_head, name_list
from layerswap_method.layer_plan import format_layers
from layerswap_method.mix_reader import MixReader
from layerswap_method.tensor_names import Decoder
from layerswap_method.tensors import OpenModel, TensorMix


@dataclass(frozen=True)
class Difference:
    """A tensor that differs; `layer` is None outside the layers.

    `largest` is the largest absolute difference, NaN where a value is NaN on one side only.
    `relative` is ``||first - second|| / ||second||`` (Frobenius), infinite where the second is 0.
    """

    name: str
    layer: int | None
    largest: float
    relative: float


@dataclass(frozen=True)
class Comparison:
    """The common tensors of two checkpoints, and their differences; as text, what differs where.

    `first` and `second` are the names of the checkpoints. `tensors` is the number of those that
    both have in one shape; `shapes` and `dtypes` have the names of those that differ in them. Of
    different dtypes, values are compared and not bytes.
    """

    first: str
    second: str
    tensors: int
    differences: tuple[Difference, ...]
    first_only: tuple[str, ...]
    second_only: tuple[str, ...]
    shapes: tuple[str, ...]
    dtypes: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Whether the checkpoints are one model, stored in the same dtypes."""
        names = self.first_only + self.second_only + self.shapes + self.dtypes
        return not self.differences and not names

    def __repr__(self) -> str:
        return str(self)  # so a notebook shows it

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def compare(
    first: OpenModel, second: OpenModel, advance: Callable[[int], object] = lambda count: None
) -> Comparison:
    """Compare every tensor of two checkpoints; differences are measured against `second`.

    A tied output embedding may be stored on one side only: then it is the input embedding. Buffers
    that are not weights are left out. `advance` is called with the bytes of `first` that are done.
    """
    first_weights, second_weights = _weights(first), _weights(second)
    for model, weights, others in (
        (first, first_weights, second_weights),
        (second, second_weights, first_weights),
    ):
        checkpoint = model.checkpoint
        if checkpoint.config.tie_word_embeddings and checkpoint.embedding is not None:
            heads = [name for name in others if is_head(name) and name not in weights]
            weights |= {name: _mix(model, name) for name in heads}
    common = sorted(first_weights.keys() & second_weights.keys())
    comparable = [
        name for name in common if first_weights[name].shape == second_weights[name].shape
    ]
    differences: list[Difference] = []
    decoder = first.checkpoint.decoder
    for name in comparable:
        differences += _differences(name, first_weights[name], second_weights[name], decoder)
        advance(_nbytes(first_weights[name]))
    return Comparison(
        first=first.name,
        second=second.name,
        tensors=len(comparable),
        differences=tuple(differences),
        first_only=tuple(sorted(first_weights.keys() - second_weights.keys())),
        second_only=tuple(sorted(second_weights.keys() - first_weights.keys())),
        shapes=tuple(
            name for name in common if first_weights[name].shape != second_weights[name].shape
        ),
        dtypes=tuple(
            name
            for name in comparable
            if first_weights[name].sum_dtype != second_weights[name].sum_dtype
        ),
    )


def verify_models(merged: str, published: str) -> Comparison:
    """Compare every tensor of two models, as `find_model` finds them, showing the progress.

    Raises:
        InputError: for a model that does not exist or cannot be read.
    """
    first, second = open_model(merged), open_model(published)
    nbytes = sum(map(_nbytes, _weights(first).values()))
    with byte_progress("comparing", nbytes) as advance:
        return compare(first, second, advance)


def _lines(comparison: Comparison) -> Iterator[str]:
    """Yield what differs between two checkpoints, in lines of text."""
    first, second = comparison.first, comparison.second
    if comparison.is_equal:
        yield f"equal: all {comparison.tensors} tensors of {first} and {second}, bit for bit"
        return
    yield f"{first} and {second} are not equal"
    for title, names in (
        (f"only in {first}", comparison.first_only),
        (f"only in {second}", comparison.second_only),
        ("other shapes", comparison.shapes),
        ("other dtypes (compared by value)", comparison.dtypes),
    ):
        if names:
            yield f"  {title}: {len(names)} tensors: {name_list(names, 5)}"
    if not comparison.differences:
        yield f"  the values of all {comparison.tensors} common tensors are equal"
        return
    outside = "outside the layers"
    places: dict[str, list[Difference]] = {}
    for row in sorted(comparison.differences, key=lambda row: (row.layer is None, row.layer or 0)):
        places.setdefault(outside if row.layer is None else f"layer {row.layer}", []).append(row)
    layers = {row.layer for row in comparison.differences if row.layer is not None}
    yield (
        f"  {len(comparison.differences)} of {comparison.tensors} common tensors differ; layers "
        f"(0-based): {format_layers(sorted(layers)) or 'none'}; {outside}: "
        f"{name_list([row.name for row in places.get(outside, [])], 5) or 'none'}"
    )
    for place, rows in places.items():
        largest = max(rows, key=lambda row: (math.isnan(row.largest), row.largest)).largest
        most = max(rows, key=lambda row: (math.isnan(row.relative), row.relative))
        yield (
            f"  {place}: {len(rows)} tensors, largest difference {largest:.3g}, relative norm up "
            f"to {most.relative:.3g} ({most.name})"
        )


def _weights(model: OpenModel) -> dict[str, TensorMix]:
    names = (name for name in model.checkpoint.tensors if not is_buffer(name))
    return {name: _mix(model, name) for name in names}


def _mix(model: OpenModel, name: str) -> TensorMix:
    """Return a tensor with what the model's adapter adds to it."""
    return TensorMix(terms=(model.term(name),))


def _nbytes(mix: TensorMix) -> int:
    return mix.terms[0].stored.nbytes


def _differences(
    name: str, first: TensorMix, second: TensorMix, decoder: Decoder
) -> Iterator[Difference]:
    """Yield how two tensors of one shape differ; nothing where they are equal."""
    differs, largest, squares, norm = False, 0.0, 0.0, 0.0
    for blocks in zip(MixReader(first).blocks(), MixReader(second).blocks(), strict=True):
        values, others = (block.reshape(-1) for _, block in blocks)
        wide = others.double()
        norm += float(wide.square().sum())
        if values.dtype == others.dtype:  # bit for bit: -0 is not 0, and a NaN is itself
            width = values.element_size()
            bits = (tensor.view(torch.uint8).view(-1, width) for tensor in (values, others))
            unequal = torch.ne(*bits).any(1)
        else:
            unequal = values.double() != wide
        if bool(unequal.any()):
            differs = True
            distances = (values.double() - wide)[unequal].abs()
            largest = float(torch.maximum(distances.max(), torch.tensor(largest).double()))
            squares += float(distances.square().sum())
    if differs:
        relative = math.sqrt(squares) / math.sqrt(norm) if norm else math.inf if squares else 0.0
        yield Difference(name, decoder.layer(name), largest, relative)
