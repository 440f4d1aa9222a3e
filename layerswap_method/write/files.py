"""The files of a layout written, and read back, in the memory of a few blocks.

A copied tensor goes from file to file inside the kernel, without torch. A file has its name only
when it is whole and on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from layerswap_method.checkpoint.stored import StoredTensor, check_unchanged, open_stored, read_into
from layerswap_method.errors import LayerSwapError, size_text
from layerswap_method.file_names import WEIGHTS_INDEX
from layerswap_method.jobs import run_counted_jobs, write_at
from layerswap_method.progress import Advance
from layerswap_method.threads import one_core_threads
from layerswap_method.write.layout import FileToWrite, Layout, TensorToWrite

_PIECE, _IN_KERNEL = 1 << 20, 1 << 26
"""Bytes that this process, and the kernel, copies at a time: an interrupt waits for no more."""

_EXPONENTS = {
    "F64": ("<u8", 0x7FF0 << 48),
    "F32": ("<u4", 0x7F80 << 16),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""Dtype -> the unsigned numbers of its bits, and the bits that are all set in NaN and infinity."""

_PART = ".part"
"""End of the name of an unfinished file."""


def write_files(
    layout: Layout,
    *,
    threads: int = 1,
    device: str = "cpu",
    advance: Advance = lambda count: None,
) -> None:
    """Write the files of a layout into their folder, which exists, and an index of several.

    They are on the disk when this returns. `threads` tensors are written at once, and what is no
    copy is computed on `device`. Raises `InputError` if an input is gone or was written anew;
    `LayerSwapError` where the disk is too small.
    """
    files = layout.files
    folder = files[0].path.parent
    _check_space(folder, layout.nbytes)
    for file in files:
        _write_file(file, threads, device, advance)
    for path, stamp in layout.inputs.items():
        check_unchanged(path, stamp)
    if len(files) > 1:
        write_json(folder / WEIGHTS_INDEX, layout.index)


def verify_files(
    layout: Layout,
    *,
    threads: int = 1,
    device: str = "cpu",
    advance: Advance = lambda count: None,
    warn: Callable[[str], object] = lambda text: None,
) -> None:
    """Read written files back from the disk, and check that every byte is what the layout says.

    `device` is that of `write_files`; `warn` is called with each copied tensor that has values
    that are not finite. Raises `LayerSwapError` with the first tensor that is not as it should be.
    """
    for file in layout.files:
        with file.path.open("rb") as opened:
            if hasattr(os, "posix_fadvise"):  # what is compared is the disk, not the cache
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if opened.read(len(file.head)) != file.head:
                raise LayerSwapError(f"{file.path}: its header is not what was written")
            advance(len(file.head))
    jobs = [
        partial(_verify, file.path, place, tensor, device, warn)
        for file in layout.files
        for place, tensor in file.tensors
    ]
    with _threads_for(layout.files, threads) as pool:
        run_counted_jobs(jobs, pool, advance)


def write_synced_text(file: Path, text: str) -> None:
    """Write a text in UTF-8 and wait until it is on the disk."""
    with file.open("w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def write_json(file: Path, content: object) -> None:
    """Write plain values as a JSON text for people; see `write_synced_text`."""
    write_synced_text(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _threads_for(files: Sequence[FileToWrite], count: int) -> ThreadPoolExecutor:
    """Return the threads that write or verify files; copies do without torch."""
    if all(tensor.content is None for file in files for _, tensor in file.tensors):
        return ThreadPoolExecutor(count)
    return one_core_threads(count)


def _write_file(file: FileToWrite, threads: int, device: str, advance: Advance) -> None:
    part = file.path.with_name(file.path.name + _PART)
    with part.open("wb", buffering=0) as out:
        out.truncate(file.nbytes)
        write_at(out.fileno(), file.head, 0)
        advance(len(file.head))
        jobs = [
            partial(_write, out.fileno(), place, tensor, device) for place, tensor in file.tensors
        ]
        with _threads_for([file], threads) as pool:
            run_counted_jobs(jobs, pool, advance)
        os.fsync(out.fileno())
    part.rename(file.path)


def _write(out: int, place: int, tensor: TensorToWrite, device: str, advance: Advance) -> None:
    written = 0
    if tensor.source is not None:
        source = tensor.source
        with open_stored(source) as opened:
            for count in _copy_in_kernel(opened, out, source, place):
                written += count
                advance(count)
    for piece in _pieces(tensor, device, written):
        write_at(out, piece, place + written)
        written += len(piece)
        advance(len(piece))


def _pieces(tensor: TensorToWrite, device: str, start: int = 0) -> Iterator[memoryview]:
    """Yield a tensor's bytes from byte `start` on; each piece is good until the next one."""
    if tensor.content is not None:
        yield from tensor.content(device)
    elif tensor.source is not None and start < tensor.nbytes:
        buffer = memoryview(bytearray(min(_PIECE, tensor.nbytes - start)))
        with open_stored(tensor.source) as opened:
            while start < tensor.nbytes:
                piece = buffer[: tensor.nbytes - start]
                read_into(opened, tensor.source, start, piece)
                yield piece
                start += len(piece)


def _copy_in_kernel(opened: IO[bytes], out: int, tensor: StoredTensor, place: int) -> Iterator[int]:
    """Yield bytes that the kernel copied; it ends early where the kernel cannot."""
    copied = 0
    while copied < tensor.nbytes:
        size, start = min(_IN_KERNEL, tensor.nbytes - copied), tensor.offset + copied
        try:
            count = os.copy_file_range(opened.fileno(), out, size, start, place + copied)
        except (OSError, AttributeError):  # two file systems, or a system that has no such call
            return
        if count == 0:
            return
        copied += count
        yield count


def _verify(
    path: Path,
    place: int,
    tensor: TensorToWrite,
    device: str,
    warn: Callable[[str], object],
    advance: Advance,
) -> None:
    is_finite = True
    with path.open("rb", buffering=0) as opened:
        for piece in _pieces(tensor, device):
            if os.pread(opened.fileno(), len(piece), place) != piece:
                raise LayerSwapError(
                    f"{path}: {tensor.name} is not what was written; disk or memory may be faulty: "
                    "merge again"
                )
            if tensor.source is not None and is_finite:  # the others were looked at when computed
                is_finite = _is_finite(tensor.dtype, piece)
            place += len(piece)
            advance(len(piece))
    if not is_finite:
        warn(f"{tensor.name}: values that are copied from its source are NaN or infinite")


def _is_finite(dtype: str, piece: memoryview) -> bool:
    """Return whether the values of a piece are; True for a dtype that is not looked at."""
    import numpy as np

    if dtype not in _EXPONENTS:
        return True
    bits_dtype, exponent = _EXPONENTS[dtype]
    return not bool((np.frombuffer(piece, bits_dtype) & exponent == exponent).any())


def _check_space(folder: Path, needed: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # writing says what is wrong
    if needed > free:
        raise LayerSwapError(
            f"{folder}: the merge needs {size_text(needed)} and the disk has "
            f"{size_text(free)} free; make room, or take another disk"
        )
