"""Canvases, styles and image files of matplotlib. Knows how figures look; not what they show.

The only importer of matplotlib, which is an extra: ``pip install 'layerswap[plot]'``. The same
drawing gives the same bytes with the same matplotlib: no dates, and ids that depend on its key.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from layerswap_method.errors import LayerSwapError

_LOG = logging.getLogger(__name__)
_NO_GLYPH = re.compile(r"Glyph (\d+) ")

HINT = "matplotlib is not installed: pip install 'layerswap[plot]'"

DPI = 200
"""Dots per inch of PNGs."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's, which colour-blind readers can tell apart; markers should differ as well."""

MARKERS = ("o", "s", "^", "D", "v", "P")
"""As many as `COLORS`."""

GREENS = (
    *("#f8fbf6", "#eaf6e7", "#daefd8", "#cae7c9", "#b9deb9", "#a7d4a8", "#95c897", "#82bb86"),
    *("#6eac75", "#5b9c65", "#4a8b57", "#3a7b4a", "#2c6c3f", "#205e36", "#15502f", "#0b4328"),
    "#043722",
)
"""Light to dark green in equal steps of CIELAB: darker is more, as in the paper's figures."""

PURPLES = (
    *("#f8fbf6", "#f4f1f6", "#efe5f6", "#e9daf4", "#e3cdf2", "#dbc0ef", "#d3b3ea", "#c9a4e4"),
    *("#bd95dc", "#b085d2", "#a275c6", "#9263b8", "#8052a8", "#6e4297", "#5b3284", "#492472"),
    "#38185f",
)
"""The same to dark purple, for numbers below zero."""

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
KINDS = tuple(_METADATA)
"""File name extensions of the images."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "text.parse_math": False,  # a name may hold two dollar signs
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "hatch.linewidth": 0.5,
}
"""Of all figures."""


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


@contextmanager
def drawing(key: str) -> Iterator[None]:
    """Let what is drawn and saved inside have the style of all figures.

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


def new_canvas(width_in: float, height_in: float, *, is_fitted: bool = True) -> Any:
    """Return an empty matplotlib figure of a size in inches; no window belongs to it.

    Args:
        width_in: inches.
        height_in: inches.
        is_fitted: whether matplotlib makes room for labels; else every place is given.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained" if is_fitted else None)


def images_of(canvas: Any, kinds: Sequence[str] = KINDS) -> dict[str, bytes]:
    """Return the figure as images, by kind; to be called inside `drawing`."""
    images = {}
    with warnings.catch_warnings(record=True) as heard:
        warnings.filterwarnings("always", message="Glyph .* missing from font")
        for kind in kinds:
            buffer = io.BytesIO()
            canvas.savefig(buffer, format=kind, metadata=_METADATA[kind], dpi=DPI)
            images[kind] = buffer.getvalue()
    codes = {int(code[1]) for each in heard if (code := _NO_GLYPH.match(str(each.message)))}
    if codes:
        _tell_missing("".join(map(chr, sorted(codes))))
    for each in heard:
        if not _NO_GLYPH.match(str(each.message)):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return images


@cache
def _tell_missing(characters: str) -> None:
    _LOG.warning(
        "%s has no glyph for %s: figures show boxes in their place",
        STYLE["font.family"],
        characters,
    )


def color_map(name: str) -> Any:
    """Return a perceptually uniform colour map.

    Args:
        name: ``greens``; ``purples-greens`` for a range with zero in its middle; or one of
            matplotlib's, such as ``cividis``.
    """
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    own = {"greens": GREENS, "purples-greens": (*reversed(PURPLES), *GREENS[1:])}
    if name in own:
        return LinearSegmentedColormap.from_list(name, own[name])
    return matplotlib.colormaps[name]


def draw_cells(
    axes: Any,
    values: Any,
    *,
    colors: Any,
    limits: tuple[float, float],
    text: Callable[[float], str],
    font_pt: float,
) -> Any:
    """Draw numbers as coloured cells with the number in each, and return the mesh.

    Args:
        axes: of matplotlib.
        values: shape [rows, columns], the bottom row first; NaN cells are hatched.
        colors: a colour map; see `color_map`.
        limits: values of its first and its last colour.
        text: the number as it is shown.
        font_pt: size of the numbers in points.
    """
    import numpy as np

    values = np.asarray(values, dtype=np.float64)
    edges = [np.arange(size + 1) - 0.5 for size in values.shape]
    low, high = limits
    mesh = axes.pcolormesh(
        edges[1],
        edges[0],
        values,
        cmap=colors,
        vmin=low,
        vmax=high,
        edgecolors="white",
        lw=0.6,
    )
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            axes.add_patch(_hatched(column, row))
            continue
        axes.text(
            column,
            row,
            text(float(value)),
            ha="center",
            va="center_baseline",
            color=contrasting(mesh.to_rgba(value)),
            fontsize=font_pt,
        )
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return mesh


def contrasting(color: Sequence[float]) -> str:
    """Return ``black`` or ``white``, whichever reads better on an sRGB colour in [0, 1].

    By the contrast ratio of WCAG 2.1: (L1 + 0.05) / (L2 + 0.05), with relative luminances L.
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _hatched(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (column - 0.5, row - 0.5), 1, 1, facecolor="#eeeeee", edgecolor="#888888", hatch="///"
    )
