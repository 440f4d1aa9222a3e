"""Heatmaps of the share of rows that changed, by layer and matrix, as in the paper's Figure 2."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from ablations.drawing.canvas import draw_cells, new_canvas
from ablations.drawing.colors import NOTE_COLOR
from ablations.paper.published import LABEL, Grid

CELL_IN = (0.26, 0.125)  # width and height of a number's cell
PAGE_IN = 7.0  # at which panels wrap
_BAR_IN, _GAP_IN, _HEAD_IN = 1.0, 0.15, 0.9
_LEAST_IN = 1.3  # height of a panel, for the label of the colour bar


def draw_heatmaps(grids: Sequence[Grid]) -> Any:
    """Return a canvas with a panel per grid, on one scale from 0 to 1; layer 0 at the bottom.

    To be called inside `canvas.drawing`. Panels are equally high, so that models of different
    depth stand next to each other by relative depth.
    """
    width = max(len(grid.columns) for grid in grids) * CELL_IN[0]
    height = max(_LEAST_IN, max(len(grid.values) for grid in grids) * CELL_IN[1])
    columns = max(1, min(len(grids), int((PAGE_IN - _BAR_IN) / (width + _GAP_IN))))
    rows = math.ceil(len(grids) / columns)
    canvas = new_canvas(columns * (width + _GAP_IN) + _BAR_IN, rows * (height + _HEAD_IN))
    panels = canvas.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(grids) :]:
        axes.set_visible(False)
    for axes, grid in zip(panels, grids, strict=False):
        mesh = draw_cells(
            axes,
            grid.values,
            rows=[str(layer) for layer in range(len(grid.values))],
            columns=column_labels(grid.columns),
            limits=(0.0, 1.0),
            text=lambda share: f"{share:.2f}" if share else "0",
            font_pt=5.6,
        )
        axes.set_title(_wrapped(grid.title, width, 6.0), loc="left", fontweight="bold")
        axes.set_xlabel(_wrapped(grid.note, width, 3.2), fontsize=6, color=NOTE_COLOR)
    panels[0].set_ylabel("layer", fontsize=7)
    fraction = max(0.05, 0.14 / (columns * width))  # of their width, so that it is as high as they
    bar = canvas.colorbar(mesh, ax=panels, aspect=rows * height / 0.12, fraction=fraction, pad=0.02)
    bar.solids.set(rasterized=False, edgecolor="face")  # vectors only
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5, length=2)
    bar.set_label(_wrapped(LABEL, rows * height, 5.4), fontsize=7)
    return canvas


def column_labels(parameters: Sequence[str]) -> list[str]:
    """Return q, k, v, o, ...; the whole name where the last part is not enough."""
    short_names = [name.rpartition(".")[2].removesuffix("_proj") for name in parameters]
    return [
        short if short_names.count(short) == 1 else name
        for short, name in zip(short_names, parameters, strict=True)
    ]


def _wrapped(text: str, width_in: float, letter_pt: float) -> str:
    return textwrap.fill(text, max(8, int(width_in * 72 / letter_pt)))
