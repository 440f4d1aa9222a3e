"""Written files, read back from the disk and compared with what they were made from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from layerswap_method.errors import LayerSwapError
from layerswap_method.stream.layout import PlannedFile, PlannedTensor
from layerswap_method.stream.write import Advance, run_jobs


def verify_files(
    files: Sequence[PlannedFile],
    *,
    threads: int = 1,
    device: str = "cpu",
    advance: Advance = lambda count: None,
) -> None:
    """Check that every byte of written files is what the plan says.

    Args:
        files: written by `write_files`.
        threads: tensors that are read at once.
        device: as it was for `write_files`.
        advance: told of every byte that is right.

    Raises:
        LayerSwapError: naming the first tensor that is not.
        InputError: if an input is gone, cut short, or was written anew.
    """
    for file in files:
        with file.path.open("rb") as opened:
            if hasattr(os, "posix_fadvise"):  # what is compared is the disk, not the cache
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if opened.read(len(file.head)) != file.head:
                raise LayerSwapError(f"{file.path}: its header is not what was written")
            advance(len(file.head))
    run_jobs(
        [partial(_verify, file.path, *each, device) for file in files for each in file.tensors],
        threads,
        advance,
    )


def _verify(path: Path, place: int, tensor: PlannedTensor, device: str, advance: Advance) -> None:
    with path.open("rb", buffering=0) as opened:
        for piece in tensor.content(device):
            if os.pread(opened.fileno(), len(piece), place) != piece:
                raise LayerSwapError(
                    f"{path}: {tensor.name} is not what was written; the disk or the memory may "
                    "be faulty: merge again"
                )
            place += len(piece)
            advance(len(piece))
