"""Stored tensors: where their bytes are in a safetensors file, and how they are read.

safetensors checks the headers; the bytes are read and not mapped, because a mapped file would stay
in the resident set of the process. torch is imported where tensors are read.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from layerswap_method.errors import InputError, first_line
from layerswap_method.hub.partial import ensure_there, is_named_by_content

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

FLOATS: Mapping[str, int] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Dtypes of weights -> bytes of a value; integers and smaller floats are quantised."""

TORCH_NAMES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "C64": "complex64",
    "BOOL": "bool",
}
"""Name of a dtype in safetensors -> in torch; packed ones (F4, F6) are not there."""

_NUMPY_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

STORED_NAMES = {torch_name: name for name, torch_name in TORCH_NAMES.items()}

_BLOCK = 1 << 18
"""About as many values are read and computed at a time: they stay in the processor's caches."""

_ALIGNED = 64
"""Blocks begin at multiples of so many values: vector code then sees the same lanes as in the
whole tensor, and a block is bit for bit a part of it."""

Stamp = tuple[int, int, int]
"""Times of the last write and of the last change of state in ns, and inode, of a file. All are 0
where `is_named_by_content`."""


@dataclass(frozen=True)
class StoredTensor:
    """The place of one tensor: `nbytes` from byte `offset` of a file (no link) on.

    `stamp` is the file's state when its header was read, `dtype` safetensors' name, such as `BF16`.
    """

    file: Path
    stamp: Stamp
    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_name(self) -> str:
        """Torch's name of the dtype; safetensors' where torch has none."""
        return TORCH_NAMES.get(self.dtype, self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.nbytes // (math.prod(self.shape) or 1)

    @property
    def span(self) -> tuple[int, int]:
        """The tensor's first byte in the file, and the byte after its last."""
        return self.offset, self.offset + self.nbytes

    @property
    def rows(self) -> int:
        """Length of the first dimension; a tensor of no dimensions has one row."""
        return self.shape[0] if self.shape else 1


def _stamp(file: Path, state: os.stat_result) -> Stamp:
    if is_named_by_content(file):
        return 0, 0, 0
    # The inode and the time of change, too: a restored time of writing hides a new file.
    return state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def check_unchanged(file: Path, stamp: Stamp, current: Stamp | None = None) -> None:
    """Compare the state of a file (`current`, or what it is now) with that of its header."""
    try:
        now = current or _stamp(file, file.stat())
    except OSError as error:
        raise InputError(f"{file}: the weights are gone: {error.strerror}") from error
    if now != stamp:
        raise InputError(f"{file}: the weights were rewritten while they were in use")


def read_header(file: Path, called: str | None = None) -> dict[str, StoredTensor]:
    """Return tensor name -> place in a safetensors file, in the order of the names.

    Messages begin with `called`, or with the path. Raises `InputError` for a file that is gone, cut
    short or damaged, as safetensors says.
    """
    from safetensors import SafetensorError, safe_open

    try:
        file = file.resolve()
        with file.open("rb") as opened:
            stamp = _stamp(file, os.fstat(opened.fileno()))
            with safe_open(file, framework="np"):
                length = int.from_bytes(opened.read(8), "little")
                entries = json.loads(opened.read(length))
    except PermissionError as error:
        raise InputError(
            f"{called or f'{file}:'} may not be read by this user; correct its permissions"
        ) from error
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise InputError(
            f"{called or f'{file}:'} is damaged ({reason}); download or copy it again"
        ) from error
    entries.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(entries.items()):
        begin, end = entry["data_offsets"]
        tensors[name] = StoredTensor(
            file=file,
            stamp=stamp,
            name=name,
            offset=8 + length + begin,
            nbytes=end - begin,
            shape=tuple(entry["shape"]),
            dtype=entry["dtype"],
        )
    return tensors


@contextmanager
def open_stored(tensor: StoredTensor, rows: slice = slice(None)) -> Iterator[IO[bytes]]:
    """Yield the tensor's file, unbuffered, in which the `rows` are there.

    What is missing of them is fetched, see `ensure_there`, before the file is opened: the whole one
    may take its place then. Raises `InputError` if it was rewritten since its header was read.
    """
    ensure_rows_there([(tensor, rows)])
    try:
        opened = tensor.file.open("rb", buffering=0)
    except OSError as error:
        raise InputError(f"{tensor.file}: the weights are gone: {error.strerror}") from error
    with opened:
        check_unchanged(tensor.file, tensor.stamp, _stamp(tensor.file, os.fstat(opened.fileno())))
        yield opened


def read_into(opened: IO[bytes], tensor: StoredTensor, start: int, view: memoryview) -> None:
    """Fill `view` with the tensor's bytes from byte `start` on; `opened` is `open_stored`'s."""
    first = tensor.offset + start
    filled = 0
    try:
        while filled < len(view):
            count = os.preadv(opened.fileno(), [view[filled:]], first + filled)
            if count == 0:
                raise InputError(f"{tensor.file}: is incomplete; download or copy it again")
            filled += count
    except OSError as error:
        raise InputError(f"{tensor.file}: cannot be read: {error.strerror}") from error


def ensure_rows_there(tensors: Iterable[tuple[StoredTensor, slice]]) -> None:
    """Make sure that rows of tensors, all of which will be read, are there; see `ensure_there`.

    What is missing is then fetched at once, and not row by row.
    """
    ranges = dict[Path, list[tuple[int, int]]]()
    names = []
    for tensor, rows in tensors:
        shape, start = _rows_of(tensor, rows)
        first = tensor.offset + start
        names.append(tensor.name)
        span = (first, first + math.prod(shape) * tensor.itemsize)
        ranges.setdefault(tensor.file, []).append(span)
    more = f" or one of {len(names) - 1} more" if len(names) > 1 else ""
    ensure_there(ranges, f"{', '.join(names[:1])}{more}")


def read_rows(tensor: StoredTensor, rows: slice = slice(None)) -> torch.Tensor:
    """Return rows (numbers of the first dimension, in steps of 1) of a tensor, as stored.

    The memory is the caller's. A tensor of no dimensions is returned as one row. Raises
    `InputError` if the file is gone, cut short or was written anew, or for a packed dtype.
    """
    import torch

    shape, start = _rows_of(tensor, rows)
    values = torch.empty(shape, dtype=torch_dtype(tensor.torch_name))
    with open_stored(tensor, rows) as opened:
        read_into(opened, tensor, start, memory_of(values))
    return values


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, which can be written."""
    import torch

    return tensor.view(-1).view(torch.uint8).numpy().data


def read_floats(tensor: StoredTensor, rows: slice = slice(None)) -> npt.NDArray[Any]:
    """Return rows of a tensor of `FLOATS`, without torch, as float32 or as stored float64."""
    import numpy as np

    shape, start = _rows_of(tensor, rows)
    values: npt.NDArray[Any] = np.empty(shape, _NUMPY_NAMES[tensor.dtype])
    with open_stored(tensor, rows) as opened:
        read_into(opened, tensor, start, values.reshape(-1).view(np.uint8).data)
    if tensor.dtype == "BF16":
        values = np.left_shift(values, 16, dtype=np.uint32).view(np.float32)
    return values.astype(np.float32) if tensor.dtype == "F16" else values


def _rows_of(tensor: StoredTensor, rows: slice) -> tuple[tuple[int, ...], int]:
    """Return the shape of rows of a tensor, and the byte of it at which they begin."""
    start, stop, _ = rows.indices(tensor.rows)
    width = math.prod(tensor.shape[1:])
    return (stop - start, *tensor.shape[1:]), start * width * tensor.itemsize


def read_tensor(tensor: StoredTensor) -> torch.Tensor:
    """Return a stored tensor whole. Raises `InputError` as `read_rows`."""
    return read_rows(tensor).view(tensor.shape)


def row_blocks(shape: Sequence[int], rows: slice = slice(None)) -> Iterator[slice]:
    """Yield the ranges of `rows` of a tensor of `shape` that are read and computed at a time."""
    start, stop, _ = rows.indices(shape[0] if shape else 1)
    width = max(1, math.prod(shape[1:]))
    step = max(1, _BLOCK // width)
    if width % _ALIGNED:
        step = max(_ALIGNED, step // _ALIGNED * _ALIGNED)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that torch has under `name`. Raises `InputError` if it has none."""
    import torch

    dtype: Any = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{name!r} is not a torch dtype")
    return dtype


@functools.lru_cache(maxsize=64)
def same_content(first: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bytes."""
    if (first.dtype, first.shape) != (other.dtype, other.shape):
        return False
    ensure_rows_there([(first, slice(None)), (other, slice(None))])
    size = min(1 << 20, first.nbytes)
    first_bytes, other_bytes = memoryview(bytearray(size)), memoryview(bytearray(size))
    with open_stored(first) as first_file, open_stored(other) as other_file:
        for start in range(0, first.nbytes, size or 1):
            count = min(size, first.nbytes - start)
            read_into(first_file, first, start, first_bytes[:count])
            read_into(other_file, other, start, other_bytes[:count])
            if first_bytes[:count] != other_bytes[:count]:
                return False
    return True
