"""The rows of a tensor that are read at a time. Knows shapes only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_VALUES = 1 << 18
"""Values read at a time, about."""

_ALIGNED = 64
"""Blocks begin at multiples of so many rows: vector code then sees the same lanes as in the
whole tensor, and a block is bit for bit a part of it."""


def row_blocks(shape: Sequence[int], rows: slice = slice(None)) -> Iterator[slice]:
    """Yield the blocks of `rows`, each a range in steps of 1.

    Args:
        shape: of the whole tensor; one of no dimensions has one row.
        rows: a range in steps of 1.
    """
    start, stop, _ = rows.indices(shape[0] if shape else 1)
    width = max(1, math.prod(shape[1:]))
    step = max(_ALIGNED, _VALUES // width // _ALIGNED * _ALIGNED)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
