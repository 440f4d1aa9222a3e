"""Figures of delta profiles: heatmaps, a published one beside, comparisons. Reads no checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ablations.delta.compare import PairComparison
from ablations.drawing.canvas import COLORS, MARKERS, drawing, images_of, new_canvas
from ablations.drawing.grid import Grid
from ablations.drawing.heatmaps import draw_heatmaps
from ablations.machine.whole_files import write_bytes

KINDS = ("png", "svg")
"""Images of every figure."""

MOST_LINES = len(COLORS)
"""Pairs of experts that are lines; more are columns of a heatmap."""

LEAST_SPAN = 0.2
"""Of the axes of a comparison: cosines of 0.01 must not look like an effect."""


def heatmap(grids: Sequence[Grid], stem: Path, *, headline: str = "") -> list[Path]:
    """Draw grids as heatmaps on one colour scale, as the paper's Figure 2, and return the files.

    Layer 0 is at the bottom, columns stand in the order of each grid, the number is in every
    cell, and darker is more. The same grids give the same bytes with the same matplotlib.

    Args:
        grids: at least one.
        stem: path of the images without the extension, which are those of `KINDS`.
        headline: a line over all panels.

    Raises:
        LayerSwapError: without matplotlib.
    """
    return _write(stem, lambda: draw_heatmaps(grids, headline))


def comparison(pairs: Sequence[PairComparison], stem: Path) -> list[Path]:
    """Draw per-layer correlation and cosine of every pair of experts in one figure.

    Up to `MOST_LINES` pairs are lines over the layers; more are heatmaps with a column each.
    Arguments, returns and errors are those of `heatmap`.
    """
    if len(pairs) <= MOST_LINES:
        return _write(stem, lambda: draw_lines(pairs))
    names = tuple(map(_name, pairs))
    return heatmap(
        [
            Grid(
                title,
                names,
                tuple(zip(*lines, strict=True)),
                "correlation / cosine",
                limits=(-1.0, 1.0),
            )
            for title, lines in _panels(pairs)
        ],
        stem,
    )


def draw_lines(pairs: Sequence[PairComparison]) -> Any:
    """Return a canvas with the two panels of a comparison; to be called inside `drawing`."""
    canvas = new_canvas(7.0, 2.7)
    panels = canvas.subplots(1, 2)
    for axes, (title, lines) in zip(panels, _panels(pairs), strict=True):
        for number, (pair, values) in enumerate(zip(pairs, lines, strict=True)):
            axes.plot(
                range(len(values)),
                values,
                label=_name(pair),
                color=COLORS[number],
                marker=MARKERS[number],
                markersize=3.2,
                lw=1.2,
            )
        known = [value for line in lines for value in line if not math.isnan(value)]
        low, high = min([0.0, *known]), max([0.0, *known])
        high = max(high, low + LEAST_SPAN)
        room = 0.06 * (high - low)
        axes.set_ylim(low - (room if low < 0 else 0), high + room)
        axes.axhline(0, color="#777777", lw=0.7, zorder=1)
        axes.grid(axis="y", color="#dddddd", lw=0.5)
        axes.set_axisbelow(True)
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xlabel("layer (0: embedding side)")
        axes.xaxis.get_major_locator().set_params(integer=True)
    columns = 1 + (len(pairs) > 1) + (len(pairs) > 2)
    widest = max(len(_name(pair)) for pair in pairs)
    canvas.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=columns if widest <= 32 else 1,
        frameon=False,
    )
    return canvas


def _name(pair: PairComparison) -> str:
    return f"{pair.first} × {pair.second}"


def _panels(pairs: Sequence[PairComparison]) -> Iterator[tuple[str, list[tuple[float, ...]]]]:
    for title, field in (
        ("correlation of MAV profiles", "layer_correlation"),
        ("cosine between deltas", "layer_cosine"),
    ):
        found = [getattr(pair, field) for pair in pairs]
        yield title, [tuple(math.nan if v is None else v for v in values) for values in found]


def _write(stem: Path, draw: Callable[[], Any]) -> list[Path]:
    with drawing(stem.name):
        images = images_of(draw(), KINDS)
    paths = {stem.with_name(f"{stem.name}.{kind}"): image for kind, image in images.items()}
    for path, image in paths.items():
        write_bytes(path, image)
    return list(paths)
