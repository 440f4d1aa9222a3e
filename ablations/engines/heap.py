"""Has large blocks of memory go back to the system when they are freed. Knows glibc, nothing else.

glibc raises the size from which blocks are mapped on their own to 32 MiB as soon as one was freed.
Smaller ones then stay with the process, in holes that the next tensor may not fit into: a model
whose tensors are replaced one by one would take far more memory than its tensors do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 20
_USUAL = 1 << 25
"""Where glibc's own adjustment ends, in bytes; it cannot be turned on again."""


@contextmanager
def large_blocks_mapped() -> Iterator[None]:
    """Map every block of 1 MiB and more on its own inside; glibc's usual habits after.

    Does nothing with another C library. Ends with a `trim`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _USUAL)
        mallopt(_TRIM_THRESHOLD, 2 * _USUAL)
        trim()


def trim() -> None:
    """Give back what was freed before it was mapped on its own."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
