"""Scores over two counts of layers, as coloured cells with a region around the best. Knows looks.

The colour of a cell is its difference to one reference, so that one scale serves all panels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ablations.drawing.figure import Drawing, draw_figure
from ablations.drawing.heatmaps import contrasting

_CELL_IN = (0.335, 0.29)


@dataclass(frozen=True)
class MapCell:
    """One place of the map."""

    score: float | None
    """Percent, or BLEU; None where there is no result."""

    difference: float = 0.0
    """To the reference, in points."""

    is_best: bool = False
    """Whether it is the best."""

    is_near_best: bool = False
    """Whether it belongs to the best region."""

    is_suggested: bool = False
    """Whether `layerswap suggest` proposes it."""


@dataclass(frozen=True)
class MapPanel:
    """The map of one score."""

    title: str
    """Task, language and metric."""

    cells: dict[tuple[int, int], MapCell]
    """(row, column) -> the cell, row 0 at the bottom; places without a cell stay empty."""


@dataclass(frozen=True)
class ScoreMap:
    """A map of scores."""

    key: str
    """Names the file."""

    title: str
    """What it shows."""

    caption: str
    """How to read it."""

    x_label: str
    """What the columns are."""

    y_label: str
    """What the rows are."""

    rows: tuple[str, ...]
    """Names of the rows, from the bottom."""

    columns: tuple[str, ...]
    """Names of the columns."""

    panels: tuple[MapPanel, ...]
    """One per score."""


def draw_map(chart: ScoreMap) -> Drawing:
    """Return the drawing of `chart`; see `draw_figure`."""
    size = (
        _CELL_IN[0] * len(chart.columns) + 0.65,
        _CELL_IN[1] * len(chart.rows) + 0.75,
    )
    found = [abs(cell.difference) for panel in chart.panels for cell in panel.cells.values()]
    limit = max([1.0, *found])
    return draw_figure(
        chart.key,
        [partial(_draw, chart, panel, limit) for panel in chart.panels],
        (max(3.0, size[0]), size[1]),
    )


def _draw(chart: ScoreMap, panel: MapPanel, limit: float, axes: Any) -> None:
    import numpy as np

    values = np.full((len(chart.rows), len(chart.columns)), np.nan)
    for place, cell in panel.cells.items():
        if cell.score is not None:
            values[place] = cell.difference
    mesh = axes.pcolormesh(values, cmap="PRGn", vmin=-limit, vmax=limit, edgecolors="white", lw=0.6)
    for (row, column), cell in panel.cells.items():
        if cell.score is None:
            axes.fill(
                [column, column + 1, column + 1, column],
                [row, row, row + 1, row + 1],
                facecolor="#eeeeee",
                edgecolor="#999999",
                hatch="////",
                lw=0,
            )
            continue
        color = contrasting(mesh.to_rgba(cell.difference))
        said = "+".join(["best"] * cell.is_best + ["sugg."] * cell.is_suggested)
        axes.text(
            column + 0.5,
            row + (0.62 if said else 0.5),
            f"{cell.score:.1f}",
            ha="center",
            va="center_baseline",
            color=color,
            fontsize=7,
            fontweight="bold" if said else "normal",
            in_layout=False,
        )
        if said:
            axes.text(
                column + 0.5,
                row + 0.22,
                said,
                ha="center",
                va="center_baseline",
                color=color,
                fontsize=5.8 if len(said) < 6 else 4.4,
                in_layout=False,
            )
    for ends in _outline(panel):
        axes.plot(*ends, color="black", lw=1.4, solid_capstyle="projecting", clip_on=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks([at + 0.5 for at in range(len(chart.columns))], chart.columns)
    axes.set_yticks([at + 0.5 for at in range(len(chart.rows))], chart.rows)
    axes.tick_params(length=0, pad=2)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)


def _outline(panel: MapPanel) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the edges between the best region and what is outside, as x and y of their ends."""
    inside = {place for place, cell in panel.cells.items() if cell.is_near_best}
    for row, column in sorted(inside):
        edges = {
            (row - 1, column): ([column, column + 1], [row, row]),
            (row + 1, column): ([column, column + 1], [row + 1, row + 1]),
            (row, column - 1): ([column, column], [row, row + 1]),
            (row, column + 1): ([column + 1, column + 1], [row, row + 1]),
        }
        yield from (ends for place, ends in edges.items() if place not in inside)
