"""The place of every tensor of a checkpoint in its files, in safetensors' layout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path

from layerswap_method.checkpoint.stored import (
    FLOATS,
    STORED_NAMES,
    Stamp,
    StoredTensor,
    memory_of,
    read_rows,
    row_blocks,
)
from layerswap_method.file_names import WEIGHTS_FILE
from layerswap_method.mix_reader import MixReader
from layerswap_method.tensors import Merge, TensorMix

SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in one file; a single larger tensor exceeds it."""


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor as it will be written, in safetensors' dtype: a copy of `source`, or `content`.

    `content` makes its bytes on a device, piece by piece; a piece is valid until the next one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    content: Callable[[str], Iterator[memoryview]] | None = field(default=None, repr=False)
    source: StoredTensor | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.nbytes // (math.prod(self.shape) or 1)


@dataclass(frozen=True)
class FileToWrite:
    """One file as it will be written: its head, and its tensors with their first bytes."""

    path: Path
    head: bytes
    tensors: tuple[tuple[int, TensorToWrite], ...]
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """The files of a checkpoint as they will be written, and the states of those that are read."""

    files: tuple[FileToWrite, ...]
    inputs: Mapping[Path, Stamp]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def index(self) -> Mapping[str, object]:
        """Content of the index of the files."""
        file_of: dict[str, str] = {}
        size = 0
        for file in self.files:
            for _, tensor in file.tensors:
                file_of[tensor.name] = file.path.name
                size += tensor.nbytes
        return {"metadata": {"total_size": size}, "weight_map": file_of}


def lay_out_files(
    merge: Merge,
    folder: Path,
    shard_bytes: int = SHARD_BYTES,
    warn: Callable[[str], object] = lambda text: None,
) -> Layout:
    """Return the files of a merge in `folder`; one is ``model.safetensors``, several are numbered.

    `warn` is called with a sentence on values that are not finite, when they are computed.
    """
    tensors = []
    for name, mix in merge.tensors.items():
        if (stored := mix.copy_of) is not None:
            tensors.append(written_as_stored(name, stored))
            continue
        dtype = STORED_NAMES[mix.result_dtype]
        nbytes = math.prod(mix.shape) * FLOATS[dtype]
        content = partial(_computed, name, mix, warn)
        tensors.append(TensorToWrite(name, dtype, mix.shape, nbytes, content))
    return lay_out_tensors(tensors, folder, shard_bytes, merge.files)


def lay_out_tensors(
    tensors: Sequence[TensorToWrite],
    folder: Path,
    shard_bytes: int = SHARD_BYTES,
    inputs: Mapping[Path, Stamp] | None = None,
) -> Layout:
    """Return the files of tensors, as `lay_out_files` does for those of a merge."""
    shards: list[list[TensorToWrite]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    count = len(shards)
    files = []
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{count:05d}.safetensors"
        files.append(_file(folder / (name if count > 1 else WEIGHTS_FILE), shard))
    return Layout(tuple(files), inputs or {})


def written_as_stored(name: str, stored: StoredTensor) -> TensorToWrite:
    """Return a stored tensor as it is, under a name of its own."""
    return TensorToWrite(name, stored.dtype, stored.shape, stored.nbytes, source=stored)


def _computed(
    name: str, mix: TensorMix, warn: Callable[[str], object], device: str
) -> Iterator[memoryview]:
    """Yield the bytes of a mix, block by block; warn once of values that are not finite."""
    is_finite = True
    for _, block in MixReader(mix, device).blocks():
        if is_finite and not bool(block.isfinite().all()):
            is_finite = False
            dtype = str(block.dtype).removeprefix("torch.")
            damaged = " and ".join(str(stored.file) for stored in _damaged(mix))
            why = f"as in {damaged}" if damaged else f"they leave the range of {dtype}"
            warn(f"{name}: values of the merge are NaN or infinite, {why}")
        yield memory_of(block.contiguous())


def _damaged(mix: TensorMix) -> Iterator[StoredTensor]:
    """Yield the stored tensors of a mix that hold values that are not finite."""
    for stored in (stored for term in mix.terms for stored in term.all_stored):
        blocks = (read_rows(stored, rows) for rows in row_blocks(stored.shape))
        if not all(bool(block.isfinite().all()) for block in blocks):
            yield stored


def _file(path: Path, tensors: Sequence[TensorToWrite]) -> FileToWrite:
    """Return a file with its tensors in the order of their bytes: wide values before narrow."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ordered = sorted(tensors, key=lambda tensor: (-tensor.itemsize, tensor.name))
    places = [0, *accumulate(tensor.nbytes for tensor in ordered)]
    for tensor, span in zip(ordered, pairwise(places), strict=True):
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": span}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    *starts, end = (len(head) + place for place in places)
    return FileToWrite(path, head, tuple(zip(starts, ordered, strict=True)), end)
