"""Numbers as coloured cells, and grids of layers as figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.drawing.canvas import new_canvas
from ablations.drawing.grid import Grid, power_of_ten

PAGE_IN = (7.0, 9.2)
"""Text area of a page: panels wrap at its width, and many layers shrink to its height."""

FONT_PT = (5.0, 7.0)
"""Least and largest size of a number."""

_LEADING = 1.35
"""Least height of a layer, in sizes of its font."""

_LETTER = 0.62
"""Width of a digit of DejaVu Sans in sizes of its font, about."""

_PLAIN = ("q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up")


@dataclass(frozen=True)
class Scale:
    """The one colour scale of a figure, and how its numbers are written."""

    limits: tuple[float, float]
    """Values of the first and the last colour."""

    exponent: int
    """Power of ten that numbers are shown in units of."""

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


def draw_heatmaps(grids: Sequence[Grid], headline: str = "") -> Any:
    """Return a canvas with a panel per grid, all on one colour scale; layer 0 at the bottom.

    To be called inside `canvas.drawing`. Panels are equally high, so that models of different
    depth stand next to each other by relative depth.

    Args:
        grids: at least one.
        headline: a line over all panels.
    """
    scale = scale_of(grids)
    texts = [scale.text(v) for grid in grids for row in grid.values for v in row if v == v]
    wide = max(len(grid.columns) for grid in grids) * (max(map(len, texts)) + 1) * _LETTER / 72
    layers = max(grid.num_layers for grid in grids)
    room = PAGE_IN[0] - 1.2
    columns = min(len(grids), max(1, int(room / (wide * FONT_PT[0] + 0.15))))
    rows = math.ceil(len(grids) / columns)
    columns = math.ceil(len(grids) / rows)
    head_in = 0.75 + 0.05 * max(len(name) for grid in grids for name in column_labels(grid.columns))
    row_in = min(0.185, ((PAGE_IN[1] - 0.4) / rows - head_in) / layers)
    fitting = min(72 * row_in / _LEADING, (room / columns - 0.15) / wide)
    font = min(FONT_PT[1], max(FONT_PT[0], fitting))
    size = wide * font, layers * max(row_in, _LEADING * font / 72)
    canvas = new_canvas(columns * (size[0] + 0.15) + 1.2, rows * (size[1] + head_in) + 0.4)
    panels = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(grids) :]:
        axes.set_visible(False)
    for axes, grid in zip(panels, grids, strict=False):
        mesh = draw_cells(
            axes,
            grid.values,
            rows=[str(layer) for layer in range(grid.num_layers)],
            columns=column_labels(grid.columns),
            limits=scale.limits,
            text=scale.text,
            font_pt=0.9 * font,
        )
        axes.set_title(_wrapped(grid.title, size[0], 6), loc="left", fontweight="bold")
        axes.set_xlabel(_wrapped(grid.note, size[0], 3.2), fontsize=6, color="#555555")
    panels[0].set_ylabel("layer", fontsize=font)
    bar = canvas.colorbar(mesh, ax=panels, aspect=rows * size[1] / 0.12, fraction=0.05, pad=0.02)
    bar.solids.set(rasterized=False, edgecolor="face")  # vectors only
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5, length=2)
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value / 10**scale.exponent:g}")
    bar.set_label(_wrapped(scale.label, rows * size[1], 4.3), fontsize=7)
    if headline:
        canvas.suptitle(_wrapped(headline, columns * size[0] + 0.5, 4.3), fontsize=7.5)
    return canvas


def draw_cells(
    axes: Any,
    values: Any,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float],
    text: Callable[[float], str],
    font_pt: float,
) -> Any:
    """Draw numbers as coloured cells with the number in each, and return the mesh.

    Darker is more; with values below zero on the scale they are purple.

    Args:
        axes: of matplotlib.
        values: shape [rows, columns], the bottom row first; NaN cells are hatched.
        rows: their names.
        columns: their names; long ones are turned.
        limits: values of the first and the last colour.
        text: the number as it is shown.
        font_pt: size of the numbers in points.
    """
    import numpy as np

    low, high = limits
    mesh = axes.pcolormesh(
        np.asarray(values, dtype=np.float64),
        cmap="PRGn" if low < 0 else "Greens",
        vmin=low,
        vmax=high,
        edgecolors="white",
        lw=0.6,
    )
    axes.patch.set(facecolor="#eeeeee", edgecolor="#888888", hatch="///")  # shows where NaN is
    for (row, column), value in np.ndenumerate(mesh.get_array().filled(np.nan)):
        if not np.isnan(value):
            axes.text(
                column + 0.5,
                row + 0.5,
                text(float(value)),
                ha="center",
                va="center_baseline",
                color=contrasting(mesh.to_rgba(value)),
                fontsize=font_pt,
                in_layout=False,
            )
    axes.spines[:].set_visible(False)
    is_turned = max(map(len, columns)) > 1 + max(len(text(value)) for value in limits)
    axes.set_xticks(
        [place + 0.5 for place in range(len(columns))], columns, rotation=90 * is_turned
    )
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(length=0, labelsize=font_pt, pad=2)
    return mesh


def contrasting(color: Sequence[float]) -> str:
    """Return ``black`` or ``white``, whichever reads better on an sRGB colour in [0, 1].

    By the contrast ratio of WCAG 2.1: (L1 + 0.05) / (L2 + 0.05), with relative luminances L.
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _wrapped(text: str, width_in: float, letter_pt: float) -> str:
    return textwrap.fill(text, max(8, int(width_in * 72 / letter_pt)))
