"""Spans of a stored tensor, read without mapping the file. Knows places of bytes and torch.

`safe_open` maps files: what was read stays in the resident set of the process until it ends, and
a page fault costs more than a read into a buffer that is still in the processor's cache. Whoever
streams whole checkpoints reads spans instead.
"""

from __future__ import annotations

import math
from typing import IO, Any

import torch

from layerswap_method.checkpoints.stored import StoredTensor, fill, open_stored
from layerswap_method.errors import InputError


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that torch has under `name`.

    Raises:
        InputError: if it has none.
    """
    found: Any = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"{name!r} is not a torch dtype")
    return found


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
    view = memoryview(buffer.view(torch.uint8).numpy().data)
    fill(opened, tensor, start * tensor.itemsize, view)


def read_rows(tensor: StoredTensor, rows: slice = slice(None)) -> torch.Tensor:
    """Return rows (numbers of the first dimension, in steps of 1) of a tensor, as stored.

    The memory is the caller's. A tensor of no dimensions has one row and is returned as such.

    Raises:
        InputError: if the file is gone, cut short, or was written anew, or for a packed dtype.
    """
    count, *rest = tensor.shape or (1,)
    start, stop, _ = rows.indices(count)
    width = math.prod(rest)
    flat = torch.empty((stop - start) * width, dtype=torch_dtype(tensor.torch_name))
    with open_stored(tensor) as opened:
        read_span(opened, tensor, start * width, flat)
    return flat.view(stop - start, *rest)
