"""The header of a safetensors file, checked: name -> where the tensor's bytes are.

Knows safetensors' layout only, and not torch. Whatever this accepts, safetensors' own reader
accepts and reads alike: bytes may be copied by these places without another look.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from layerswap_method.errors import InputError, LayerSwapError


class Dtype(NamedTuple):
    """A dtype of safetensors."""

    bits: int
    """Bits of one value."""

    torch_name: str | None
    """What torch calls it; None for packed values, which torch has no plain dtype for."""


DTYPES: Mapping[str, Dtype] = {
    "F64": Dtype(64, "float64"),
    "F32": Dtype(32, "float32"),
    "F16": Dtype(16, "float16"),
    "BF16": Dtype(16, "bfloat16"),
    "F8_E5M2": Dtype(8, "float8_e5m2"),
    "F8_E4M3": Dtype(8, "float8_e4m3fn"),
    "F8_E8M0": Dtype(8, "float8_e8m0fnu"),
    "F6_E2M3": Dtype(6, None),
    "F6_E3M2": Dtype(6, None),
    "F4": Dtype(4, None),
    "C64": Dtype(64, "complex64"),
    "I64": Dtype(64, "int64"),
    "I32": Dtype(32, "int32"),
    "I16": Dtype(16, "int16"),
    "I8": Dtype(8, "int8"),
    "U64": Dtype(64, "uint64"),
    "U32": Dtype(32, "uint32"),
    "U16": Dtype(16, "uint16"),
    "U8": Dtype(8, "uint8"),
    "BOOL": Dtype(8, "bool"),
}
"""Name of a dtype in safetensors -> what it is."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""What weights may be stored as, the widest first; integers and smaller floats are quantised."""

_MAX_HEADER = 100_000_000
"""Bytes of the longest header that safetensors reads."""

_MAX_NUMBER = 1 << 64
"""The first number that safetensors does not count to."""

_ENTRY = {"dtype", "shape", "data_offsets"}

_REMEMBERED = 64
"""Files whose headers are remembered."""

_PIECE = 1 << 20
"""Bytes compared at a time."""


@dataclass(frozen=True)
class StoredTensor:
    """Where the bytes of one tensor are."""

    file: Path
    """The safetensors file; absolute, without links."""

    stamp: int
    """When that file was last written, in ns."""

    offset: int
    """First byte of the tensor in the file."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    """Its dtype as safetensors writes it, such as `BF16`."""

    @property
    def torch_name(self) -> str:
        """Return what torch calls its dtype; safetensors' name where torch has none."""
        return DTYPES[self.dtype].torch_name or self.dtype

    @property
    def itemsize(self) -> int:
        """Return the bytes of one value."""
        return DTYPES[self.dtype].bits // 8


def read_header(file: Path, called: str | None = None) -> dict[str, StoredTensor]:
    """Return tensor name -> place, in the order of the names.

    Args:
        file: a safetensors file.
        called: how messages begin; the path of the file where it is None.

    Raises:
        InputError: for a file that is gone, cut short or damaged, or whose header does not fit
            its bytes: tensors that overlap, leave a gap, or have another size than their shape.
    """
    try:
        file = file.resolve()
        with file.open("rb") as opened:
            state = os.fstat(opened.fileno())
            length = int.from_bytes(opened.read(8), "little")
            if state.st_size < 8 + length or length > _MAX_HEADER:
                raise ValueError(f"no header: the file has {state.st_size} bytes")
            entries = _entries(opened.read(length))
        end = _check_places(entries)
        if 8 + length + end != state.st_size:
            raise ValueError(
                f"its header places {end} bytes of tensors and it holds "
                f"{state.st_size - 8 - length}"
            )
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        what = f"{called or f'{file}:'} is damaged ({reason})"
        raise InputError(f"{what}; download or copy it again") from error
    return {
        name: StoredTensor(
            file=file,
            stamp=state.st_mtime_ns,
            offset=8 + length + entry["data_offsets"][0],
            nbytes=entry["data_offsets"][1] - entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
            dtype=entry["dtype"],
        )
        for name, entry in sorted(entries.items())
    }


def stored_tensor(file: Path, stamp: int, name: str) -> StoredTensor:
    """Return the place of one tensor in a file that was last written at `stamp`.

    Raises:
        InputError: if the file is gone, or was written anew.
        LayerSwapError: if the tensor is not in it.
    """
    check_unchanged(file, stamp)
    found = _header(file, stamp).get(name)
    if found is None:
        raise LayerSwapError(f"{file}: {name} cannot be read: it is not in the file")
    return found


_WRITTEN_ANEW = "the weights were rewritten while they were in use"


def check_unchanged(file: Path, stamp: int) -> None:
    """Compare a file with the stamp that it had when it was read first.

    Raises:
        InputError: if it was written anew since.
    """
    if file_stamp(file) != stamp:
        raise InputError(f"{file}: {_WRITTEN_ANEW}")


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
            raise InputError(f"{tensor.file}: {_WRITTEN_ANEW}")
        yield opened


def fill(opened: IO[bytes], tensor: StoredTensor, start: int, view: memoryview) -> None:
    """Fill `view` with the tensor's bytes from byte `start` on.

    Args:
        opened: what `open_stored` gave.
        tensor: the tensor.
        start: 0 is the tensor's first byte.
        view: of bytes.

    Raises:
        InputError: if the file ends before, or cannot be read.
    """
    done = 0
    try:
        while done < len(view):
            count = os.preadv(opened.fileno(), [view[done:]], tensor.offset + start + done)
            if count == 0:
                raise InputError(f"{tensor.file}: is incomplete; download or copy it again")
            done += count
    except OSError as error:
        raise InputError(f"{tensor.file}: cannot be read: {error.strerror}") from error


def file_stamp(file: Path) -> int:
    """Return when a file was last written, in ns.

    Raises:
        InputError: if it is gone.
    """
    try:
        return file.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"{file}: the weights are gone: {error.strerror}") from error


@functools.lru_cache(maxsize=_REMEMBERED)
def same_content(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors are alike: dtype, shape and every byte.

    Raises:
        InputError: if a file is gone, or was written anew since its header was read.
    """
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with open_stored(one) as ours, open_stored(other) as theirs:
        for start in range(0, one.nbytes, _PIECE):
            size = min(_PIECE, one.nbytes - start)
            left, right = (
                os.pread(opened.fileno(), size, tensor.offset + start)
                for opened, tensor in ((ours, one), (theirs, other))
            )
            if left != right:
                return False
    return True


@functools.lru_cache(maxsize=_REMEMBERED)
def _header(file: Path, stamp: int) -> Mapping[str, StoredTensor]:
    """Return the tensors of the file as it was written at `stamp`."""
    del stamp  # another one is another header
    return read_header(file)


def _entries(raw: bytes) -> dict[str, dict[str, Any]]:
    """Return the entries of a header, each with a known dtype, a shape and two offsets."""
    found = json.loads(
        raw.decode("utf-8"),
        object_pairs_hook=_no_key_twice,
        parse_int=_whole_number,
        parse_constant=_no_number,
    )
    if not isinstance(found, dict):
        raise ValueError("its header is not a mapping")
    notes = found.pop("__metadata__", None) or {}
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise ValueError("__metadata__ is not a mapping of texts")
    for text in (*found, *notes, *notes.values()):
        text.encode("utf-8")  # half a surrogate pair is no text
    for name, entry in found.items():
        if not isinstance(entry, dict) or entry.keys() != _ENTRY:
            raise ValueError(f"{name} is not written as dtype, shape and data_offsets")
        numbers = [entry["shape"], entry["data_offsets"]]
        if not all(isinstance(each, list) for each in numbers) or len(numbers[1]) != 2:
            raise ValueError(f"{name} has no shape or no two offsets")
        if not all(type(number) is int for each in numbers for number in each):
            raise ValueError(f"{name} has a shape or offsets that are not numbers")
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
            raise ValueError(f"{name} has the unknown dtype {entry['dtype']!r}")
    return found


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a key twice")
    return found


def _whole_number(text: str) -> int:
    number = int(text)
    if text.startswith("-") or number >= _MAX_NUMBER:
        raise ValueError(f"its header has the number {text[:20]}")
    return number


def _no_number(text: str) -> Any:
    raise ValueError(f"its header has the number {text}")


def _check_places(entries: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the byte at which the last tensor ends; every byte up to it must be one tensor's."""
    end = 0
    places = sorted((entry["data_offsets"], name) for name, entry in entries.items())
    for (first, last), name in places:
        if first != end:
            raise ValueError(f"{name} begins at byte {first} and should at {end}")
        count = 1
        for length in entries[name]["shape"]:
            count *= length
            if count >= _MAX_NUMBER:
                raise ValueError(f"{name} has more values than can be counted")
        bits = count * DTYPES[entries[name]["dtype"]].bits
        if bits >= _MAX_NUMBER or bits != 8 * (last - first):
            raise ValueError(f"{name} has {last - first} bytes, which is not its shape's size")
        end = last
    return end
