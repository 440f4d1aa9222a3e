"""A figure of a report, as wide as a page at most, and the text that fits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ablations.drawing.canvas import drawing, images_of

_FONT_PT, SMALL_PT = 8.5, 7.5
"""Size of text, and of the text of ticks, cells and legends."""

LINE_IN = 0.165
"""Height of a line of text."""


WIDTH_IN = 8.0
"""Width of the column of a page or a paper."""


class Figure(NamedTuple):
    """A drawn figure."""

    key: str
    title: str
    caption: str
    alt: str
    """Its content in words, for those who cannot see it."""

    images: dict[str, bytes]
    """File name extension (``svg``, ``png``, ``pdf``) -> content."""

    share: float
    """Part of the column's width that it takes, so that all figures have text of one size."""

    summary: str = ""
    """Stands for it on a page where it is folded; empty for one that is not."""


Draw = Callable[[], Any]
"""Returns the canvas of a figure."""


def fitting_letters(width_in: float, font_pt: float = _FONT_PT) -> int:
    """Return how many letters fit a width."""
    return max(8, int(width_in * 72 / (0.62 * font_pt)))


def draw_figure(
    key: str, title: str, caption: str, alt: str, draw: Draw, *, summary: str = ""
) -> Figure:
    """Return a figure; the ids in its SVG depend on its key."""
    with drawing(key):
        canvas = draw()
        return Figure(
            key=key,
            title=title,
            caption=caption,
            alt=alt,
            images=images_of(canvas),
            share=canvas.get_figwidth() / WIDTH_IN,
            summary=summary,
        )
