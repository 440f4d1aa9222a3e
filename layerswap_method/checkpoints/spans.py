"""Spans of a stored tensor, read without mapping the file. Knows safetensors' layout only.

`safe_open` maps files: what was read stays in the resident set of the process until it ends, and
a page fault costs more than a read into a buffer that is still in the processor's cache. Whoever
streams whole checkpoints reads spans instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from layerswap_method.errors import InputError


@dataclass(frozen=True)
class StoredTensor:
    """Where the bytes of one tensor are."""

    file: Path
    """The safetensors file."""

    stamp: int
    """When that file was last written, in ns."""

    offset: int
    """First byte of the tensor in the file."""

    shape: tuple[int, ...]
    """Its shape."""

    dtype: torch.dtype
    """Its dtype in the file."""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one value."""
        return self.dtype.itemsize


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return tensor name -> place, for a file whose header safetensors accepts.

    Tensors of a dtype that torch has no plain name for (packed ones) are left out.

    Raises:
        InputError: if the file is gone or its header no longer reads.
    """
    stamp = file_stamp(file)
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: is damaged ({error}); get it again") from error
    return {
        name: StoredTensor(
            file=file,
            stamp=stamp,
            offset=8 + length + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
            dtype=getattr(torch, DTYPES[entry["dtype"]]),
        )
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] in DTYPES
    }


@contextmanager
def open_stored(tensor: StoredTensor) -> Iterator[IO[bytes]]:
    """Yield the tensor's file, unbuffered.

    Raises:
        InputError: if it is gone, or was written anew since the header was read.
    """
    try:
        opened = tensor.file.open("rb", buffering=0)
    except OSError as error:
        raise InputError(f"{tensor.file}: the weights are gone: {error.strerror}") from error
    with opened:
        if os.fstat(opened.fileno()).st_mtime_ns != tensor.stamp:
            raise InputError(f"{tensor.file}: the weights were written anew while they were in use")
        yield opened


def read_span(opened: IO[bytes], tensor: StoredTensor, start: int, buffer: torch.Tensor) -> None:
    """Fill `buffer` with the tensor's values from number `start` on.

    Args:
        opened: what `open_stored` gave.
        tensor: the tensor.
        start: number of the first value, in the order of the file.
        buffer: flat, contiguous, of the tensor's dtype.

    Raises:
        InputError: if the file ends before.
    """
    size = buffer.numel() * tensor.itemsize
    view = memoryview(buffer.view(torch.uint8).numpy().data)
    place = tensor.offset + start * tensor.itemsize
    done = 0
    try:
        while done < size:
            count = os.preadv(opened.fileno(), [view[done:]], place + done)
            if count == 0:
                raise InputError(f"{tensor.file}: is cut short; get it again")
            done += count
    except OSError as error:
        raise InputError(f"{tensor.file}: cannot be read: {error.strerror}") from error


DTYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Name of a dtype in safetensors -> in torch."""


def file_stamp(file: Path) -> int:
    """Return when a file was last written, in ns.

    Raises:
        InputError: if it is gone.
    """
    try:
        return file.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"{file}: the weights are gone: {error.strerror}") from error
