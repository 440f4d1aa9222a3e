"""Layer counts given for one depth, used at another. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

COUNTS = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
"""The parameters of `layer_swap` that count layers."""


def scale_count(count: int, reference: int, num_layers: int) -> int:
    """Return ``floor(count * num_layers / reference + 1/2)``: the share of the depth, rounded.

    Halves are rounded up (2 of 32 layers are 1 of 8), unlike Python's `round`.

    Raises:
        ValueError: for a count that is negative or beyond the reference depth.
    """
    if not 0 <= count <= reference:
        raise ValueError(f"{count} is no number of layers of a model of {reference}")
    return math.floor(count * num_layers / reference + 0.5)


def describe_scaling(counts: Mapping[str, Collection[int]], reference: int, num_layers: int) -> str:
    """Return what became of the counts, with the unrounded number where it was rounded.

    Args:
        counts: parameter -> the counts it was given.
        reference: the depth they were given for.
        num_layers: the depth of the model.
    """
    parts = []
    for name, given in counts.items():
        changes = []
        for count in sorted(given):
            exact = count * num_layers / reference
            scaled = scale_count(count, reference, num_layers)
            rounded = "" if exact == scaled else f" (from {exact:g})"
            changes.append(f"{count} -> {scaled}{rounded}")
        parts.append(f"{name} {', '.join(changes)}")
    return f"layer counts of {reference} layers, scaled to {num_layers}: {'; '.join(parts)}"
