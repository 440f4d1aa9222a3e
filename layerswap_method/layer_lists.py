"""Layers as text such as "0-4,30,31", and back."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

_PART = re.compile(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?")
_MOST_LAYERS = 100_000
"""Layer numbers from here on are refused before a range is written out."""


def parse_layers(
    text: str, num_layers: int | None = None, name: str = "language_layers"
) -> tuple[int, ...]:
    """Return the ascending layers of a string such as ``"0-4,30,31"`` (0-based, ends included).

    Raises:
        ValueError: for anything but numbers and ranges of layers that are there, each once.
    """
    layers: set[int] = set()
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    where = f"{name} {shown!r}"
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{where}: {part.strip()!r} is neither a layer nor a range; "
                "write layers and ranges (ends included) such as '0-4,30,31'"
            )
        numbers = [number for number in match.groups() if number is not None]
        for number in numbers:
            if len(number.lstrip("0")) >= len(str(_MOST_LAYERS)):
                raise ValueError(
                    f"{where}: layer {number[:40]} does not exist; no model has {_MOST_LAYERS} "
                    "layers"
                )
        start, end = int(numbers[0]), int(numbers[-1])
        if end < start:
            raise ValueError(f"{where}: range {part.strip()!r} runs backwards")
        if num_layers is not None and end >= num_layers:
            raise ValueError(
                f"{where}: layer {end} does not exist; the model has layers 0 to {num_layers - 1}"
            )
        named = range(start, end + 1)
        if twice := layers.intersection(named):
            raise ValueError(f"{where}: layer {min(twice)} is named twice")
        layers.update(named)
    return tuple(sorted(layers))


def format_layers(layers: Iterable[int]) -> str:
    """Return ascending layers as text, the inverse of `parse_layers`: ``(0,1,2,7) -> "0-2,7"``."""
    return ",".join(
        str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in runs_of(layers)
    )


def runs_of(layers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the longest runs [start, end) of consecutive layers, ascending."""
    numbered = enumerate(sorted(layers))
    for _, run in itertools.groupby(numbered, lambda pair: pair[1] - pair[0]):
        members = [layer for _, layer in run]
        yield members[0], members[-1] + 1
