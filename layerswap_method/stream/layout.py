"""Where every tensor of a stream will stand in its files. Knows mixes and safetensors' layout.

Nothing is written here, and torch is imported only where numpy cannot compute a tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from layerswap_method.checkpoints.stored import DTYPES, StoredTensor, stored_tensor
from layerswap_method.stream.mix import TensorMix
from layerswap_method.stream.pieces import form, pieces, stored_bytes
from layerswap_method.stream.weight_stream import WeightStream

SHARD_BYTES = 5_000_000_000
"""Bytes of the tensors in one file, at most, but for a tensor that alone is larger."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor as it will be written."""

    name: str
    """Its name in the file."""

    content: Callable[[str], Iterator[memoryview]] = field(repr=False)
    """(device) -> its bytes, piece by piece; each is good until the next one."""

    origins: tuple[tuple[Path, int], ...]
    """The files that it is made of, and when each was last written, in ns."""

    dtype: str
    """Its dtype as safetensors writes it."""

    shape: tuple[int, ...]
    """Its shape."""

    nbytes: int
    """Its bytes."""

    source: StoredTensor | None
    """What it is a copy of; None where it is computed."""


@dataclass(frozen=True)
class PlannedFile:
    """One file as it will be written."""

    path: Path
    """Where it will stand."""

    head: bytes
    """Its first bytes, up to the first tensor."""

    tensors: tuple[tuple[int, PlannedTensor], ...]
    """First byte in the file, and the tensor, without gaps."""

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return len(self.head) + sum(tensor.nbytes for _, tensor in self.tensors)


def lay_out(stream: WeightStream, folder: Path, shard_bytes: int) -> tuple[PlannedFile, ...]:
    """Return the files of a stream; one is ``model.safetensors``, several are numbered.

    Args:
        stream: what to write; its headers are read.
        folder: where to.
        shard_bytes: bytes of the tensors in one file, at most.

    Raises:
        InputError: if an input is gone, damaged, or was written anew.
    """
    return lay_out_tensors(
        [_plan(name, mix) for name, mix in stream.mixes.items()], folder, shard_bytes
    )


def lay_out_tensors(
    planned: Sequence[PlannedTensor], folder: Path, shard_bytes: int
) -> tuple[PlannedFile, ...]:
    """Return the files of tensors, as `lay_out` does for those of a stream."""
    shards = _shards(planned, shard_bytes)
    count = len(shards)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    paths = [folder / name for name in (names if count > 1 else ["model.safetensors"])]
    return tuple(_file(path, tensors) for path, tensors in zip(paths, shards, strict=True))


def index_of(files: Sequence[PlannedFile]) -> str:
    """Return the text of the index of several files."""
    listed = {tensor.name: file.path.name for file in files for _, tensor in file.tensors}
    size = sum(tensor.nbytes for file in files for _, tensor in file.tensors)
    index = {"metadata": {"total_size": size}, "weight_map": listed}
    return json.dumps(index, indent=2, ensure_ascii=False) + "\n"


def _plan(name: str, mix: TensorMix) -> PlannedTensor:
    origin = mix.terms[0][0]
    plain = TensorMix(terms=((origin.model_copy(update={"dtype": None, "change": None}), 1.0),))
    if mix == plain:
        stored = stored_tensor(origin.file, origin.stamp, origin.name)
        return copy_of(name, stored)
    torch_name, shape = form(mix)
    (dtype,) = (key for key, known in DTYPES.items() if known.torch_name == torch_name)
    nbytes = math.prod(shape) * DTYPES[dtype].bits // 8
    origins = tuple((origin.file, origin.stamp) for origin, _ in mix.terms)
    return PlannedTensor(name, partial(pieces, mix), origins, dtype, shape, nbytes, None)


def copy_of(name: str, stored: StoredTensor) -> PlannedTensor:
    """Return a stored tensor as it is, under a name of its own."""
    return PlannedTensor(
        name=name,
        content=lambda device: stored_bytes(stored),
        origins=((stored.file, stored.stamp),),
        dtype=stored.dtype,
        shape=stored.shape,
        nbytes=stored.nbytes,
        source=stored,
    )


def _shards(planned: Sequence[PlannedTensor], shard_bytes: int) -> list[list[PlannedTensor]]:
    """Return the tensors of each file, in the order of their bytes: wide values before narrow."""
    shards: list[list[PlannedTensor]] = [[]]
    size = 0
    for tensor in planned:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return [sorted(each, key=lambda t: (-DTYPES[t.dtype].bits, t.name)) for each in shards]


def _file(path: Path, tensors: Sequence[PlannedTensor]) -> PlannedFile:
    entries: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    places = []
    end = 0
    for tensor in tensors:
        places.append(end)
        end += tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [places[-1], end],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    placed = ((len(head) + place, t) for place, t in zip(places, tensors, strict=True))
    return PlannedFile(path, head, tuple(placed))
