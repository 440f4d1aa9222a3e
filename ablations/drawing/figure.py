"""Panels as one image, and each by itself. Knows sizes; not what a panel shows.

All of matplotlib comes from `ablations.drawing.canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.canvas import drawing, images_of, new_canvas

_PANELS_PER_ROW = 3

Painter = Callable[[Any], None]
"""Draws one panel on axes of matplotlib."""


@dataclass(frozen=True)
class Drawing:
    """A figure in the forms that a report needs."""

    images: dict[str, bytes]
    """All panels: file name extension (``svg``, ``png``, ``pdf``) -> content."""

    panels: tuple[bytes, ...]
    """An SVG per panel, which a page can put beside or below each other."""


def draw_figure(key: str, painters: Sequence[Painter], size: tuple[float, float]) -> Drawing:
    """Return the drawing of some panels.

    Args:
        key: names the figure.
        painters: one per panel, at least one.
        size: width and height of a panel with its labels, in inches.

    Raises:
        LayerSwapError: without matplotlib; see `ablations.drawing.canvas.can_draw`.
    """
    number = len(painters)
    columns = 2 if number == 4 else min(_PANELS_PER_ROW, number)
    rows = math.ceil(number / columns)
    with drawing(key):
        canvas = new_canvas(size[0] * columns, size[1] * rows)
        axes = [each for row in canvas.subplots(rows, columns, squeeze=False) for each in row]
        for unused in axes[number:]:
            unused.set_visible(False)
        for each, paint in zip(axes, painters, strict=False):
            paint(each)
        images = images_of(canvas)
    panels = []
    for place, paint in enumerate(painters):
        with drawing(f"{key}-{place}"):
            canvas = new_canvas(*size)
            paint(canvas.subplots())
            panels.append(images_of(canvas, ["svg"])["svg"])
    return Drawing(images, tuple(panels))


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return `places` moved apart so that labels at them do not overlap, in their order.

    Args:
        places: where the labels belong.
        gap: least distance of two labels.
        low: where the first label may be at the lowest.
        high: where the last label may be at the highest; below it is used where all fit.
    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    moved = list(places)
    for before, at in zip([None, *order], order, strict=False):
        least = low if before is None else moved[before] + gap
        moved[at] = max(moved[at], least)
    most = high
    for at in reversed(order):
        moved[at] = min(moved[at], most)
        most = moved[at] - gap
    return moved
