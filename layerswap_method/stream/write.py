"""A stream written as a checkpoint's weights, in the memory of a few blocks.

Not config, tokenizer or card, and not how a folder appears whole (`output.temporary_output`). A
tensor that is one stored tensor goes from file to file inside the kernel, without torch; the others
are blended block by block. A file has its name only when it is whole and on the disk.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from layerswap_method.checkpoints.stored import StoredTensor, check_unchanged, fill, open_stored
from layerswap_method.errors import LayerSwapError
from layerswap_method.stream.layout import (
    INDEX,
    PlannedFile,
    PlannedTensor,
    index_of,
)

_PIECE = 1 << 20
"""Bytes that are read at a time where the kernel cannot copy."""

_IN_KERNEL = 1 << 26
"""Bytes that the kernel copies at a time: an interrupt waits for no more."""

_PART = ".part"
"""What the name of an unfinished file ends with."""

Advance = Callable[[int], object]
"""Called with the bytes that are done since the last call, from any thread."""

Bar = Callable[[str, int], AbstractContextManager[Advance]]
"""(what is done, bytes of it) -> a context that yields what is told of the progress."""

Job = Callable[[Advance], None]
"""One tensor's work; it tells of its progress, and ends where that raises."""


def write_files(
    files: Sequence[PlannedFile],
    *,
    threads: int = 1,
    resume: bool = False,
    device: str = "cpu",
    advance: Advance = lambda count: None,
) -> None:
    """Write planned files of one folder, and their index where there are several.

    They are on the disk, not in a cache, when this returns.

    Args:
        files: what to write; their folder must exist, and files in it are replaced.
        threads: tensors that are written at once.
        resume: leave files alone that an earlier call finished in this folder.
        device: where what is not a copy is computed, as torch calls it.
        advance: told of every byte that is written, or was.

    Raises:
        InputError: if an input is gone, cut short, or was written anew.
        LayerSwapError: if a file cannot be written; some are then left in the folder.
    """
    folder = files[0].path.parent
    waiting = [file for file in files if not (resume and is_finished(file))]
    advance(sum(file.nbytes for file in files) - sum(file.nbytes for file in waiting))
    for left in folder.glob(f"*{_PART}"):
        left.unlink()
    _check_space(folder, sum(file.nbytes for file in waiting))
    with ExitStack() as outputs:
        jobs = [
            job
            for file in waiting
            for job in outputs.enter_context(closing(_Output(file, device))).jobs()
        ]
        run_jobs(jobs, threads, advance)
    _check_unchanged(files)
    if len(files) > 1:
        with _in_one_message(folder / INDEX):
            write_text(folder / INDEX, index_of(files))


def is_finished(file: PlannedFile) -> bool:
    """Return whether a file of this layout stands at its place: it got its name when whole."""
    try:
        with file.path.open("rb") as opened:
            return (
                os.fstat(opened.fileno()).st_size == file.nbytes
                and opened.read(len(file.head)) == file.head
            )
    except OSError:
        return False


def write_text(file: Path, text: str) -> None:
    """Write a text in UTF-8 and wait until it is on the disk."""
    with file.open("w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def run_jobs(jobs: Sequence[Job], threads: int, advance: Advance) -> None:
    """Do all jobs; where one fails, or on an interrupt, the others end at their next piece."""
    stopped = threading.Event()

    def counted(count: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        advance(count)

    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(job, counted) for job in jobs]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [error for each in done if (error := each.exception()) is not None]
            if failed:
                raise next((e for e in failed if not isinstance(e, InterruptedError)), failed[0])
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


class _Output:
    """One file while it is written: the first tensor opens it, the last one finishes it."""

    def __init__(self, file: PlannedFile, device: str) -> None:
        self._file, self._device = file, device
        self._part = file.path.with_name(file.path.name + _PART)
        self._lock = threading.Lock()
        self._opened: IO[bytes] | None = None
        self._left = max(1, len(file.tensors))

    def jobs(self) -> list[Job]:
        """Return what there is to do, in the order of the bytes."""
        parts = [partial(self._write, place, tensor) for place, tensor in self._file.tensors]
        return [*parts] or [partial(self._write, 0, None)]

    def _write(self, place: int, tensor: PlannedTensor | None, advance: Advance) -> None:
        with _in_one_message(self._file.path):
            with self._lock:
                out = self._opened or self._open(advance)
            if tensor is not None:
                _write_tensor(tensor, out.fileno(), place, self._device, advance)
            with self._lock:
                self._left -= 1
                if self._left:
                    return
            with out:
                os.fsync(out.fileno())
            self._part.rename(self._file.path)

    def close(self) -> None:
        """Close the file where a failure left it open."""
        if self._opened is not None:
            self._opened.close()

    def _open(self, advance: Advance) -> IO[bytes]:
        out = self._opened = self._part.open("wb", buffering=0)
        out.truncate(self._file.nbytes)
        _write_at(out.fileno(), self._file.head, 0)
        advance(len(self._file.head))
        return out


def _write_tensor(
    tensor: PlannedTensor, out: int, place: int, device: str, advance: Advance
) -> None:
    if tensor.source is not None:
        with open_stored(tensor.source) as opened:
            _copy(opened, out, tensor.source, place, advance)
        return
    for piece in tensor.content(device):
        _write_at(out, piece, place)
        place += len(piece)
        advance(len(piece))


def _write_at(out: int, content: bytes | memoryview, place: int) -> None:
    left = memoryview(content)
    while left:
        done = os.pwrite(out, left, place)
        left, place = left[done:], place + done


def _copy(opened: IO[bytes], out: int, tensor: StoredTensor, place: int, advance: Advance) -> None:
    """Copy a tensor's bytes to `place`: in the kernel, or where it cannot, through this process."""
    done = 0
    try:
        while done < tensor.nbytes:
            left = min(_IN_KERNEL, tensor.nbytes - done)
            count = os.copy_file_range(
                opened.fileno(), out, left, tensor.offset + done, place + done
            )
            if count == 0:
                break
            done += count
            advance(count)
    except InterruptedError:
        raise
    except (OSError, AttributeError):  # two file systems, or a system that has no such call
        pass
    buffer = memoryview(bytearray(min(_PIECE, tensor.nbytes - done)))
    while done < tensor.nbytes:
        piece = buffer[: tensor.nbytes - done]
        fill(opened, tensor, done, piece)
        _write_at(out, piece, place + done)
        done += len(piece)
        advance(len(piece))


@contextmanager
def _in_one_message(file: Path) -> Iterator[None]:
    try:
        yield
    except InterruptedError:
        raise
    except OSError as error:
        raise LayerSwapError(f"{file}: cannot be written: {error.strerror}") from error


def _check_space(folder: Path, needed: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return  # writing says what is wrong
    if needed > free:
        raise LayerSwapError(
            f"{folder}: the merge needs {needed / 1e9:.1f} GB and the disk has {free / 1e9:.1f} GB "
            "free; make room, or give an output folder on another disk"
        )


def _check_unchanged(files: Sequence[PlannedFile]) -> None:
    """Raise where a file that was read has been written since the stream was made."""
    tensors = (tensor for file in files for _, tensor in file.tensors)
    for file, stamp in dict(origin for tensor in tensors for origin in tensor.origins).items():
        check_unchanged(file, stamp)
