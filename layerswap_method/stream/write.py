"""A stream written as a checkpoint's weights, in the memory of one block. Knows files and mixes.

Not config, tokenizer or card, and not how a folder appears whole (`output.temporary_output`). Every
file is laid out before its first byte is written. A tensor that is one stored tensor goes from file
to file inside the kernel, without torch; the others are blended block by block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from layerswap_method.checkpoints.stored import (
    DTYPES,
    StoredTensor,
    file_stamp,
    open_stored,
    stored_tensor,
)
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.stream.mix import TensorMix
from layerswap_method.stream.weight_stream import WeightStream

SHARD_BYTES = 5_000_000_000
"""Bytes of the tensors in one file, at most, but for a tensor that alone is larger."""

_PIECE = 1 << 20
"""Bytes that are read at a time where the kernel cannot copy."""


@dataclass(frozen=True)
class _Planned:
    """One tensor as it will be written."""

    name: str
    mix: TensorMix
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    source: StoredTensor | None
    """What it is a copy of; None where it is computed."""


def write_weights(
    stream: WeightStream, folder: Path, shard_bytes: int = SHARD_BYTES
) -> tuple[Path, ...]:
    """Write every tensor of a stream as safetensors; return the files.

    One file is called ``model.safetensors``; several have an index. They are on the disk, not in a
    cache, when this returns.

    Args:
        stream: what to write.
        folder: where to; must exist. Files in it are replaced.
        shard_bytes: bytes of the tensors in one file, at most.

    Raises:
        InputError: if an input is gone, cut short, or was written anew.
        LayerSwapError: if a file cannot be written; some are then left in `folder`.
    """
    planned = [_plan(name, mix) for name, mix in stream.mixes.items()]
    shards = _shards(planned, shard_bytes)
    count = len(shards)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    files = [folder / name for name in (names if count > 1 else ["model.safetensors"])]
    for file, tensors in zip(files, shards, strict=True):
        try:
            _write_file(file, tensors)
        except OSError as error:
            raise LayerSwapError(f"{file}: cannot be written: {error.strerror}") from error
    _check_unchanged(planned)
    if count > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in planned)},
            "weight_map": {
                tensor.name: file.name
                for file, tensors in zip(files, shards, strict=True)
                for tensor in tensors
            },
        }
        text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return tuple(files)


def _plan(name: str, mix: TensorMix) -> _Planned:
    origin = mix.terms[0][0]
    plain = TensorMix(terms=((origin.model_copy(update={"dtype": None, "change": None}), 1.0),))
    if mix == plain:
        stored = stored_tensor(origin.file, origin.stamp, origin.name)
        return _Planned(name, mix, stored.dtype, stored.shape, stored.nbytes, stored)
    from layerswap_method.stream.read import MixReader

    reader = MixReader(mix)
    torch_name = str(reader.dtype).removeprefix("torch.")
    (dtype,) = (key for key, known in DTYPES.items() if known.torch_name == torch_name)
    return _Planned(name, mix, dtype, tuple(reader.shape), reader.nbytes, None)


def _shards(planned: Sequence[_Planned], shard_bytes: int) -> list[list[_Planned]]:
    """Return the tensors of each file, in the order of their bytes: wide values before narrow."""
    shards: list[list[_Planned]] = [[]]
    size = 0
    for tensor in planned:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return [sorted(each, key=lambda t: (-DTYPES[t.dtype].bits, t.name)) for each in shards]


def _write_file(file: Path, tensors: Sequence[_Planned]) -> None:
    head, end = _header(tensors)
    with file.open("wb", buffering=0) as out:
        out.truncate(len(head) + end)
        _write_at(out.fileno(), head, 0)
        place = len(head)
        for tensor in tensors:
            if tensor.source is not None:
                with open_stored(tensor.source) as opened:
                    _copy(opened.fileno(), out.fileno(), tensor.source, place)
            else:
                at = place
                for piece in _pieces(tensor.mix):
                    _write_at(out.fileno(), piece, at)
                    at += len(piece)
            place += tensor.nbytes
        os.fsync(out.fileno())


def _header(tensors: Sequence[_Planned]) -> tuple[bytes, int]:
    """Return the first bytes of a file, to a multiple of 8, and the bytes of its tensors."""
    entries: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def _pieces(mix: TensorMix) -> Iterator[memoryview]:
    import torch

    from layerswap_method.stream.read import MixReader

    for _, block in MixReader(mix).blocks():
        yield memoryview(block.contiguous().view(-1).view(torch.uint8).numpy().data)


def _write_at(out: int, content: bytes | memoryview, place: int) -> None:
    left = memoryview(content)
    while left:
        done = os.pwrite(out, left, place)
        left, place = left[done:], place + done


def _copy(source: int, out: int, tensor: StoredTensor, place: int) -> None:
    """Copy a tensor's bytes to `place`: in the kernel, or where it cannot, through this process."""
    done = 0
    try:
        while done < tensor.nbytes:
            left = tensor.nbytes - done
            count = os.copy_file_range(source, out, left, tensor.offset + done, place + done)
            if count == 0:
                break
            done += count
    except (OSError, AttributeError):  # two file systems, or a system that has no such call
        pass
    while done < tensor.nbytes:
        piece = os.pread(source, min(_PIECE, tensor.nbytes - done), tensor.offset + done)
        if not piece:
            raise InputError(f"{tensor.file}: is cut short; get it again")
        _write_at(out, piece, place + done)
        done += len(piece)


def _check_unchanged(planned: Sequence[_Planned]) -> None:
    """Raise where a file that was read has been written since the stream was made."""
    stamps = {origin.file: origin.stamp for t in planned for origin, _ in t.mix.terms}
    for file, stamp in stamps.items():
        if file_stamp(file) != stamp:
            raise InputError(f"{file}: the weights were written anew while they were in use")
