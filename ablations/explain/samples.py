"""The same few values of each tensor of several models: what is read to explain a merge.

A sample is at most `VALUES` values in `RUNS` runs. Tensors of one shape are sampled at the same
places, in every model and layer, so their bytes can be compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablations.statistics.means_and_p_values import Array
from layerswap_method.checkpoint.stored import (
    StoredTensor,
    open_stored,
    read_into,
    torch_dtype,
)

VALUES = 1024
"""Values of a sample; smaller tensors are read whole."""

RUNS = 2
"""Runs of neighbouring values, each one read of a file or one request to a hub."""


@dataclass(frozen=True)
class TensorSample:
    """Values of one tensor: as stored, and as numbers."""

    stored: bytes
    dtype: str
    """Torch's name."""

    values: Array

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinite."""
        return bool(np.isfinite(self.values).all())


def runs_of_shape(shape: tuple[int, ...], seed: int = 0) -> list[tuple[int, int]]:
    """Return the runs [start, end) of values that are read of a tensor of this shape, ascending.

    One lies at a place drawn by the shape and `seed` in each of `RUNS` equal parts.
    """
    size = math.prod(shape)
    if size <= VALUES:
        return [(0, size)] if size else []
    drawn = random.Random(f"{shape} {seed}")
    length, part = VALUES // RUNS, size // RUNS
    starts = [number * part + drawn.randrange(part - length + 1) for number in range(RUNS)]
    return [(start, start + length) for start in starts]


def spans(tensors: Iterable[StoredTensor]) -> dict[Path, list[tuple[int, int]]]:
    """Return the bytes of every file that samples of these tensors are read from."""
    ranges: dict[Path, list[tuple[int, int]]] = {}
    for tensor in tensors:
        for start, end in runs_of_shape(tensor.shape):
            first, last = (tensor.offset + place * tensor.itemsize for place in (start, end))
            ranges.setdefault(tensor.file, []).append((first, last))
    return ranges


def sample_tensor(tensor: StoredTensor) -> TensorSample:
    """Return the sample of a stored tensor, of which `spans` were made sure of.

    Raises `InputError` as `read_rows` does.
    """
    import torch

    parts = []
    with open_stored(tensor, slice(0)) as opened:  # no rows: of a hub model they would be fetched
        for start, end in runs_of_shape(tensor.shape):
            part = bytearray((end - start) * tensor.itemsize)
            read_into(opened, tensor, start * tensor.itemsize, memoryview(part))
            parts.append(bytes(part))
    stored = b"".join(parts)
    values = torch.frombuffer(bytearray(stored), dtype=torch_dtype(tensor.torch_name))
    return TensorSample(stored, tensor.torch_name, values.double().numpy())


def cast_bytes(sample: TensorSample, dtype: str) -> bytes:
    """Return the sample's values as they are stored in another dtype, rounded once."""
    import torch

    if sample.dtype == dtype:
        return sample.stored
    cast = torch.from_numpy(sample.values).to(torch_dtype(sample.dtype)).to(torch_dtype(dtype))
    return cast.view(torch.uint8).numpy().tobytes()


def sample_tensors(tensors: Mapping[str, StoredTensor]) -> dict[str, TensorSample]:
    """Return name -> sample of the tensors of one model that are not empty."""
    return {name: sample_tensor(stored) for name, stored in tensors.items() if stored.nbytes}
