"""Layer counts and lists given for one depth, used at another. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from layerswap_method.plan import format_layers, parse_layers, runs_of

COUNTS = ("bottom_layers", "top_layers", "bottom_transition", "top_transition")
"""The parameters of `layer_swap` that count layers; `delta_revert` has the first two."""


def scale_count(count: int, reference: int, num_layers: int) -> int:
    """Return ``floor(count * num_layers / reference + 1/2)``: the share of the depth, rounded.

    Halves are rounded up (2 of 32 layers are 1 of 8), unlike Python's `round`.

    Raises:
        ValueError: for a count that is negative or beyond the reference depth.
    """
    if not 0 <= count <= reference:
        raise ValueError(f"{count} is not a number of layers of a model of {reference}")
    return math.floor(count * num_layers / reference + 0.5)


def scale_counts(counts: Mapping[str, int], reference: int, num_layers: int) -> dict[str, int]:
    """Return the layer counts of one merge for another depth, each as `scale_count` gives it.

    Counts that fit the reference fit the other depth: where rounding makes their sum too large (2
    and 6 of 8 layers are 7.5 and 22.5 of 30), the count that was rounded up the most loses a layer,
    the last of those if there are several.

    Raises:
        ValueError: for a count that is negative or beyond the reference depth.
    """
    scaled = {name: scale_count(count, reference, num_layers) for name, count in counts.items()}
    if sum(counts.values()) > reference:  # a mistake, which the plan of the merge names
        return scaled
    while sum(scaled.values()) > num_layers:
        added = {name: scaled[name] * reference - counts[name] * num_layers for name in scaled}
        scaled[max(reversed(scaled), key=added.__getitem__)] -= 1
    return scaled


def scale_layers(text: str, reference: int, num_layers: int, name: str = "layers") -> str:
    """Return a list of layers such as ``"0-1,7"`` for another depth: the same shares of the depth.

    Layer i of `reference` covers the depth from ``i / reference`` to ``(i + 1) / reference``, and
    both ends are rounded as `scale_count` does: layer 7 of 8 is 28-31 of 32.

    Raises:
        ValueError: for what is no list of layers of a model of `reference`, or layers that are
            none of the other depth.
    """
    scaled: list[int] = []
    for start, end in runs_of(parse_layers(text, reference, name)):
        first, last = (scale_count(each, reference, num_layers) for each in (start, end))
        if first == last:
            raise ValueError(
                f"{name} {text!r}: layers {format_layers(range(start, end))} of {reference} "
                f"round to none of {num_layers}; choose other layers"
            )
        scaled += range(first, last)
    return format_layers(scaled)


def describe_scaling(
    counts: Mapping[str, Mapping[int | str, Collection[int | str]]], reference: int, num_layers: int
) -> str:
    """Return what became of counts and lists of layers, with the unrounded count where rounded.

    Args:
        counts: parameter -> what it was given -> what became of that, in one merge or another.
        reference: the depth they were given for.
        num_layers: the depth of the model.
    """
    parts = []
    for name, given in counts.items():
        changes = []
        for count in sorted(given, key=lambda each: (isinstance(each, str), each)):
            scaled = " or ".join(repr(each) for each in sorted(given[count], key=str))
            exact = "" if isinstance(count, str) else f"{count * num_layers / reference:g}"
            rounded = f" (from {exact})" if exact not in ("", scaled) else ""
            changes.append(f"{count!r} -> {scaled}{rounded}")
        parts.append(f"{name} {', '.join(changes)}")
    return f"layer counts of {reference} layers, scaled to {num_layers}: {'; '.join(parts)}"
