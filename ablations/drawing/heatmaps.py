"""Grids as heatmaps on a page: sizes, labels, one colour scale. Knows layout; computes nothing."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.canvas import color_map, draw_cells, new_canvas
from ablations.drawing.grid import Grid, power_of_ten

PAGE_IN = (7.0, 9.2)
"""Text area of a page: panels wrap at its width, and rows of many layers shrink to its height."""

FONT_PT = (5.0, 7.0)
"""Least and largest size of a number; a grid too tall for the page at the least one overhangs."""

_ROW_IN = 0.185
"""Height of a layer where there is room."""

_LEADING = 1.32
"""Height of a layer in sizes of its font, at least."""

_LETTER = 0.6
"""Width of a letter or digit of DejaVu Sans in sizes of its font, about."""

_TITLE_PT, _NOTE_PT, _SPACING = 8.5, 6.5, 1.25
_HEADLINE_PT, _BAR_PT = 7.5, 7.0
_BAR_LETTER = _LETTER * _BAR_PT / 72
_GAP_IN, _TICKS_IN, _BAR_IN = 0.16, 0.36, 0.5
_PLAIN = ("q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up")


@dataclass(frozen=True)
class Scale:
    """The one colour scale of a figure, and how its numbers read."""

    limits: tuple[float, float]
    """Values of the first and the last colour."""

    exponent: int
    """Numbers are shown in units of ten to the power of this."""

    decimals: int
    """Digits after the point."""

    label: str
    """What the numbers are."""

    def text(self, value: float) -> str:
        """Return a number as it stands in a cell; ``0`` is exactly zero."""
        if value == 0:
            return "0"
        # A number that rounds to zero has no sign.
        return f"{round(value / 10**self.exponent, self.decimals) + 0.0:.{self.decimals}f}"


def scale_of(grids: Sequence[Grid]) -> Scale:
    """Return the scale that holds zero and all values of `grids`, or their limits where given.

    With values below zero it has zero in the middle.
    """
    ends = [v for grid in grids for row in (*grid.values, grid.limits or (0.0,)) for v in row]
    known = [end for end in ends if not math.isnan(end)]
    low, high = min(known), max(known)
    if low < 0:
        low, high = -max(-low, high), max(-low, high)
    high = high if low < high else low + 1.0
    largest = math.floor(math.log10(high))
    exponent = 0 if -2 <= largest <= 2 else largest
    # Two digits after the point for shares and cosines, one for the likes of 3.4 × 10⁻⁵.
    decimals = min(4, max(0, 1 - math.floor(math.log10(high / 10**exponent) - 1e-9)))
    label = " / ".join(dict.fromkeys(grid.label for grid in grids))
    unit = f" (× {power_of_ten(exponent)})" if exponent else ""
    return Scale((low, high), exponent, decimals, f"{label}{unit}")


def column_labels(columns: Sequence[str]) -> list[str]:
    """Return the shortest ends of the parameters' names that tell them apart: q, k, v, o, ....

    A name with a space is no parameter's and stays as it is.
    """
    parts = [[name] if " " in name else name.removesuffix(".weight").split(".") for name in columns]
    labels = []
    for own in parts:
        used = next(
            (n for n in range(1, len(own) + 1) if [p[-n:] for p in parts].count(own[-n:]) == 1),
            len(own),
        )
        labels.append(".".join(own[-used:]))
    plain = [
        short if (short := label.removesuffix("_proj")) in _PLAIN else label for label in labels
    ]
    return plain if len(set(plain)) == len(plain) else labels


@dataclass(frozen=True)
class _Sheet:
    """Sizes that all panels of a figure share, in inches and points."""

    font_pt: float
    row_in: float
    cell_in: float
    rows: tuple[tuple[Grid, ...], ...]
    note_in: float
    head_in: float
    foot_in: float
    top_in: float
    is_turned: bool

    def height_in(self, row: Sequence[Grid]) -> float:
        """Return the height of the panels of a row, which are equally high."""
        return self.row_in * max(grid.num_layers for grid in row)

    @property
    def size_in(self) -> tuple[float, float]:
        """Width and height of the figure without the label of the colour bar."""
        wide = max(_width_in(row, self.cell_in) for row in self.rows)
        tall = sum(self.height_in(row) + self.head_in + self.foot_in for row in self.rows)
        return wide + _BAR_IN, tall + self.top_in


def draw_heatmaps(grids: Sequence[Grid], headline: str = "") -> Any:
    """Return a canvas with a panel per grid, all on one colour scale; layer 0 at the bottom.

    To be called inside `canvas.drawing`. Panels of a row are equally high, so that
    models of different depth stand beside each other by relative depth.

    Args:
        grids: at least one.
        headline: a line over all panels.
    """
    scale = scale_of(grids)
    sheet = _sheet(grids, scale, headline)
    wide, tall = sheet.size_in
    label = textwrap.wrap(scale.label, max(16, int(sheet.height_in(sheet.rows[0]) / _BAR_LETTER)))
    wide += len(label) * _SPACING * _BAR_PT / 72 + (0.12 if scale.limits[0] < 0 else 0)
    wide = max(wide, 0.12 + 0.56 * len(headline) * _HEADLINE_PT / 72)
    canvas = new_canvas(wide, tall, is_fitted=False)
    colors = color_map("greens" if scale.limits[0] == 0 else "purples-greens")
    if headline:
        canvas.text(0.06 / wide, 1 - 0.06 / tall, headline, fontsize=_HEADLINE_PT, va="top")
    y = tall - sheet.top_in
    places = []
    for row in sheet.rows:
        height = sheet.height_in(row)
        y -= sheet.head_in + height
        x = 0.0
        for left, grid in _lefts(row):
            x += left
            width = sheet.cell_in * len(grid.columns)
            axes = canvas.add_axes((x / wide, y / tall, width / wide, height / tall))
            mesh = _draw_panel(axes, grid, scale, sheet, colors)
            _draw_head(axes, grid, sheet, height)
            if left == _TICKS_IN:
                axes.set_yticks(range(grid.num_layers), [str(n) for n in range(grid.num_layers)])
                axes.set_ylabel("layer", fontsize=sheet.font_pt + 0.5, labelpad=2)
            x += width
        places.append((x, y, height))
        y -= sheet.foot_in
    _draw_bar(canvas, mesh, scale, label, places, (wide, tall))
    return canvas


def _draw_panel(axes: Any, grid: Grid, scale: Scale, sheet: _Sheet, colors: Any) -> Any:
    mesh = draw_cells(
        axes,
        grid.values,
        colors=colors,
        limits=scale.limits,
        text=scale.text,
        font_pt=sheet.font_pt,
    )
    modules = [name.removesuffix(".weight").rpartition(".")[0] for name in grid.columns]
    for column, (one, other) in enumerate(itertools.pairwise(modules)):
        if one != other and " " not in one + other:
            axes.axvline(column + 0.5, color="white", lw=2.2)
    turned: dict[str, Any] = {"rotation": 90} if sheet.is_turned else {}
    axes.set_xticks(range(len(grid.columns)), column_labels(grid.columns), **turned)
    axes.tick_params(labelsize=sheet.font_pt, pad=2)
    axes.set_yticks([])
    return mesh


def _draw_head(axes: Any, grid: Grid, sheet: _Sheet, height_in: float) -> None:
    """Write title and note over a panel; the titles of a figure stand on one line."""
    title, note = _head(grid, sheet.cell_in)
    middle = 1 + (0.06 + sheet.note_in) / height_in
    put = {"transform": axes.transAxes, "ha": "left"}
    axes.text(0, middle, "\n".join(title), fontsize=_TITLE_PT, weight="bold", va="bottom", **put)
    if note:
        axes.text(0, middle, "\n".join(note), fontsize=_NOTE_PT, color="#555555", va="top", **put)


def _draw_bar(
    canvas: Any,
    mesh: Any,
    scale: Scale,
    label: Sequence[str],
    rows: Sequence[tuple[float, float, float]],
    size_in: tuple[float, float],
) -> None:
    """Draw the colour bar beside the first row."""
    wide, tall = size_in
    _, y, height = rows[0]
    x = max(right for right, _, _ in rows) + 0.12
    axes = canvas.add_axes((x / wide, y / tall, 0.12 / wide, height / tall))
    bar = canvas.colorbar(mesh, cax=axes)
    bar.solids.set(rasterized=False, edgecolor="face")  # vectors only
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5, length=2, pad=1.5)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value / 10**scale.exponent:g}")
    bar.set_label("\n".join(label), fontsize=_BAR_PT, labelpad=3)


def _sheet(grids: Sequence[Grid], scale: Scale, headline: str) -> _Sheet:
    letters = max(
        len(scale.text(v)) for grid in grids for row in grid.values for v in row if v == v
    )
    labels = max((len(t) for grid in grids for t in column_labels(grid.columns)), default=1)
    font = FONT_PT[1]
    while True:
        cell = max(0.27, (_LETTER * letters + 0.55) * font / 72)
        rows = _wrapped(grids, cell)
        is_turned = _LETTER * labels * font / 72 > cell - 0.03
        heads = [_head(grid, cell) for grid in grids]
        note = max(len(lines) for _, lines in heads) * _NOTE_PT * _SPACING / 72
        head = 0.1 + note + max(len(lines) for lines, _ in heads) * _TITLE_PT * _SPACING / 72
        foot = 0.1 + (0.56 * labels if is_turned else 1.2) * font / 72
        top = 0.2 if headline else 0.04
        layers = sum(max(grid.num_layers for grid in row) for row in rows)
        room = (PAGE_IN[1] - top - len(rows) * (head + foot)) / layers
        if room >= _LEADING * font / 72 or font <= FONT_PT[0]:
            break
        font -= 0.25
    height = min(_ROW_IN, max(room, _LEADING * font / 72))
    return _Sheet(font, height, cell, rows, note, head, foot, top, is_turned)


def _wrapped(grids: Sequence[Grid], cell_in: float) -> tuple[tuple[Grid, ...], ...]:
    """Return the rows of panels: as few as the width allows, about equally long."""
    for number in range(1, len(grids) + 1):
        size = math.ceil(len(grids) / number)
        rows = tuple(tuple(grids[at : at + size]) for at in range(0, len(grids), size))
        if max(_width_in(row, cell_in) for row in rows) <= PAGE_IN[0] - _BAR_IN - 0.12:
            break
    return rows


def _width_in(row: Sequence[Grid], cell_in: float) -> float:
    return sum(left + cell_in * len(grid.columns) for left, grid in _lefts(row))


def _lefts(row: Sequence[Grid]) -> Iterator[tuple[float, Grid]]:
    """Yield what is left free before each panel; layers are numbered again where they differ."""
    before = None
    for grid in row:
        yield (_GAP_IN if before == grid.num_layers else _TICKS_IN), grid
        before = grid.num_layers


def _head(grid: Grid, cell_in: float) -> tuple[list[str], list[str]]:
    width = cell_in * len(grid.columns)
    title, note = (
        textwrap.wrap(text, max(8, int(width / (letter * size / 72))))
        for text, size, letter in ((grid.title, _TITLE_PT, 0.66), (grid.note, _NOTE_PT, 0.52))
    )
    return title, note
