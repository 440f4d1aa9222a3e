"""Canvases, styles and image files of matplotlib.

The only importer of matplotlib, which is an extra: ``pip install 'layerswap[plot]'``. The same
drawing gives the same bytes with the same matplotlib: no dates, and ids that depend on its key.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from ablations.drawing.colors import CELL_COLORS, GAP_COLOR, GAP_LINE_COLOR
from layerswap_method.errors import LayerSwapError

HINT = "matplotlib is not installed: pip install 'layerswap[plot]'"

DPI = 200
"""Dots per inch of PNGs."""


_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
KINDS = tuple(_METADATA)
"""File name extensions of the images."""

Place = tuple[int, int]
"""Row and column of a cell."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "text.parse_math": False,  # a name may hold two dollar signs
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
"""Settings of matplotlib for all figures."""


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def drawing(key: str) -> Iterator[None]:
    """Draw and save inside in the style of all figures.

    Args:
        key: names the figure; the ids in its SVG depend on it and on nothing else.

    Raises:
        LayerSwapError: without matplotlib; see `can_draw`.
    """
    if not can_draw():
        raise LayerSwapError(HINT)
    import matplotlib

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": f"layerswap/{key}"}):
        yield


def new_canvas(width_in: float, height_in: float) -> Any:
    """Return an empty matplotlib figure of a size in inches, which makes room for labels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def images_of(canvas: Any, kinds: Sequence[str] = KINDS) -> dict[str, bytes]:
    """Return the figure as images, by kind; to be called inside `drawing`."""
    images = {}
    for kind in kinds:
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=kind, metadata=_METADATA[kind], dpi=DPI)
        images[kind] = buffer.getvalue()
    return images


def draw_cells(
    axes: Any,
    values: Any,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    limits: tuple[float, float],
    text: Callable[[float], str],
    font_pt: float,
    marks: Mapping[Place, str] = MappingProxyType({}),
    framed: Collection[Place] = (),
    absent: Collection[Place] = (),
) -> Any:
    """Draw numbers as coloured cells with the number in each, and return the mesh; dark is high.

    Args:
        axes: of matplotlib.
        values: shape [rows, columns], the bottom row first; NaN cells are hatched.
        rows: their names.
        columns: their names; long ones are turned.
        limits: values of the first and the last colour.
        text: the number as it is shown.
        font_pt: size of the numbers in points.
        marks: place -> signs over its number.
        framed: places with a frame; neighbours have one together.
        absent: places that are left white.
    """
    import numpy as np

    mesh = axes.pcolormesh(
        np.asarray(values, dtype=np.float64),
        cmap=CELL_COLORS,
        vmin=limits[0],
        vmax=limits[1],
        edgecolors="white",
        lw=0.6,
    )
    gaps = np.isnan(mesh.get_array().filled(np.nan))
    for row, column in zip(*np.nonzero(gaps), strict=True):
        if (row, column) not in absent:
            _draw_gap(axes, (int(row), int(column)))
    for (row, column), value in np.ndenumerate(mesh.get_array().filled(np.nan)):
        if not np.isnan(value):
            style = {"ha": "center", "color": "white" if mesh.norm(value) > 0.6 else "black"}
            axes.text(
                column + 0.5,
                row + 0.5,
                text(float(value)),
                va="center_baseline",
                fontsize=font_pt,
                in_layout=False,
                **style,
            )
            if (row, column) in marks:
                axes.text(
                    column + 0.5,
                    row + 0.82,
                    marks[row, column],
                    va="center_baseline",
                    fontsize=font_pt,
                    in_layout=False,
                    **style,
                )
    if framed:
        _draw_frames(axes, framed)
    axes.spines[:].set_visible(False)
    is_turned = max(map(len, columns)) > 1 + max(len(text(value)) for value in limits)
    axes.set_xticks(
        [place + 0.5 for place in range(len(columns))], columns, rotation=90 * is_turned
    )
    axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
    axes.tick_params(length=0, labelsize=font_pt, pad=2)
    return mesh


def _draw_gap(axes: Any, place: Place) -> None:
    """Hatch a cell without a number."""
    from matplotlib.patches import Rectangle

    row, column = place
    corner = (column, row)
    axes.add_patch(
        Rectangle(corner, 1, 1, facecolor=GAP_COLOR, edgecolor=GAP_LINE_COLOR, hatch="///", lw=0)
    )


def _draw_frames(axes: Any, places: Collection[Place]) -> None:
    """Draw the border of every group of neighbours, black on white, to be seen on any colour."""
    from matplotlib.collections import LineCollection

    sides = []
    for row, column in places:
        neighbours = {
            (row - 1, column): [(column, row), (column + 1, row)],
            (row + 1, column): [(column, row + 1), (column + 1, row + 1)],
            (row, column - 1): [(column, row), (column, row + 1)],
            (row, column + 1): [(column + 1, row), (column + 1, row + 1)],
        }
        sides += [side for other, side in neighbours.items() if other not in places]
    for color, width in (("white", 3.6), ("black", 1.8)):
        axes.add_collection(
            LineCollection(
                sides, colors=color, lw=width, capstyle="projecting", clip_on=False, zorder=3
            ),
            autolim=False,
        )
