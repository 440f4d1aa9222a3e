"""Byte ranges ``[start, end)`` of a file, as plain values."""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """Return ranges in order, without empty ones; those at most `gap` bytes apart become one."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def lacking(ranges: Iterable[Range], present: Iterable[Range]) -> list[Range]:
    """Return the parts of `ranges` that are not in `present`."""
    missing, joined = [], join_ranges(present)
    for start, end in join_ranges(ranges):
        for begin, stop in joined:
            if stop <= start or begin >= end:
                continue
            if begin > start:
                missing.append((start, begin))
            start = stop
        if start < end:
            missing.append((start, end))
    return missing


def size(ranges: Iterable[Range]) -> int:
    """Return the bytes of ranges, each byte once."""
    return sum(end - start for start, end in join_ranges(ranges))


def split(ranges: Iterable[Range], most: int) -> list[Range]:
    """Return ranges cut into pieces of at most `most` bytes."""
    return [
        (start, min(start + most, end))
        for begin, end in ranges
        for start in range(begin, end, most)
    ]
