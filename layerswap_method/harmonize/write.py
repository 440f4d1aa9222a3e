"""A model's tensors written to the files of a checkpoint, one in memory at a time. Not its config.

What no step changed is copied from file to file inside the kernel (`stream.write`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from layerswap_method.checkpoint.stored import DTYPES
from layerswap_method.harmonize.model import LazyTensor, Model
from layerswap_method.write.layout import (
    SHARD_BYTES,
    PlannedFile,
    PlannedTensor,
    copy_of,
    lay_out_tensors,
)

_PIECE = 1 << 24
"""Bytes that are written at a time."""


def plan_files(
    model: Model, folder: Path, shard_bytes: int = SHARD_BYTES
) -> tuple[PlannedFile, ...]:
    """Return the files of a model, for `stream.write.write_files`; nothing is read yet.

    Args:
        model: after its steps.
        folder: where to.
        shard_bytes: bytes of the tensors in one file, at most.
    """
    planned = [_plan(name, tensor) for name, tensor in model.tensors.items()]
    return lay_out_tensors(planned, folder, shard_bytes)


def _plan(name: str, tensor: LazyTensor) -> PlannedTensor:
    if tensor.make is None and tensor.dtype == tensor.sources[0].dtype:
        return copy_of(name, tensor.sources[0])
    return PlannedTensor(
        name=name,
        content=partial(_bytes, tensor),
        origins=tuple((source.file, source.stamp) for source in tensor.sources),
        dtype=tensor.dtype,
        shape=tensor.shape,
        nbytes=math.prod(tensor.shape) * DTYPES[tensor.dtype].bits // 8,
        source=None,
    )


def _bytes(tensor: LazyTensor, device: str) -> Iterator[memoryview]:
    """Yield the bytes of a tensor, rounded to its dtype once; `device` is always the processor."""
    del device
    from layerswap_method.checkpoint.stored import torch_dtype
    from layerswap_method.tensors import as_bytes

    made = tensor.read()
    if tuple(made.shape) != tensor.shape:
        raise ValueError(f"a step made {list(made.shape)} and announced {list(tensor.shape)}")
    content = as_bytes(made.to(torch_dtype(DTYPES[tensor.dtype].torch_name or "")))
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]
