"""A figure of a report in its two layouts, and the text that fits them.

Every figure is drawn twice: as wide as a page, and for a screen as narrow as a phone's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ablations.drawing.canvas import drawing, images_of

_FONT_PT, SMALL_PT = 8.5, 7.5
"""Size of text, and of the text of ticks, cells and legends."""

LINE_IN = 0.165
"""Height of a line of text."""


class FigureLayout(NamedTuple):
    """The room for a figure."""

    width_in: float
    is_narrow: bool


WIDE = FigureLayout(8.0, is_narrow=False)
"""The column of a page or a paper."""

NARROW = FigureLayout(3.8, is_narrow=True)
"""A phone: 365 CSS pixels, at which text has its own size."""


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
    """Part of the column's width that it takes, so that all figures have text of one size; a wider
    one is scrolled."""

    narrow: bytes
    """The SVG for narrow screens."""

    narrow_share: float
    """Likewise, of a narrow screen."""


Draw = Callable[[FigureLayout], Any]
"""Returns the canvas of a figure in a layout."""


def fitting_letters(width_in: float, font_pt: float = _FONT_PT) -> int:
    """Return how many letters fit a width."""
    return max(8, int(width_in * 72 / (0.62 * font_pt)))


def draw_figure(key: str, title: str, caption: str, alt: str, draw: Draw) -> Figure:
    """Return a figure drawn in both layouts; the ids in its SVG depend on its key."""
    with drawing(key):
        wide, narrow = draw(WIDE), draw(NARROW)
        return Figure(
            key=key,
            title=title,
            caption=caption,
            alt=alt,
            images=images_of(wide),
            share=wide.get_figwidth() / WIDE.width_in,
            narrow=images_of(narrow, ["svg"])["svg"],
            narrow_share=narrow.get_figwidth() / NARROW.width_in,
        )
