"""Draws charts: lines, bars and heatmaps of scores. Knows looks; not what the numbers mean.

All of matplotlib comes from `ablations.drawing.canvas`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ablations.drawing.canvas import COLORS, MARKERS, STYLE, drawing, images_of, new_canvas
from ablations.drawing.heatmaps import draw_cells

_BAR = "#8cc0de"
"""Light, so that intervals and baselines show on it."""

_REFERENCES: tuple[tuple[str, Any], ...] = (
    ("#777777", (0, (1, 1.3))),
    ("#444444", (0, (7, 2.5))),
    ("#222222", (0, (7, 2, 1.5, 2))),
    ("#9a9a9a", "-"),
    ("#777777", (0, (5, 1.5, 1, 1.5, 1, 1.5))),
    ("#555555", (0, (3, 1.5))),
)
"""Grey and dashes of baselines, in the order in which the panels name them."""

_PANELS_PER_ROW = 3


def draw_chart(chart: Chart) -> dict[str, bytes]:
    """Return `chart` as images: file name extension (``svg``, ``png``, ``pdf``) -> content.

    Raises:
        LayerSwapError: without matplotlib; see `ablations.drawing.canvas.can_draw`.
    """
    with drawing(chart.key):
        number = len(chart.panels)
        columns = 2 if number == 4 else min(_PANELS_PER_ROW, number)
        rows = math.ceil(number / columns)
        wide = 3.6 if columns == 1 else 2.75
        canvas = new_canvas(wide * columns, 2.5 * rows + 0.35)
        grid = canvas.subplots(rows, columns, squeeze=False)
        axes = [each for row in grid for each in row]
        for unused in axes[number:]:
            unused.set_visible(False)
        for each, panel in zip(axes, chart.panels, strict=False):
            each.set_title(panel.title, loc="left", fontweight="bold")
            if chart.kind == "heatmap":
                _draw_heatmap(each, panel)
            else:
                _draw_scores(each, chart, panel)
                each.set_ylabel(panel.y_label)
        canvas.supxlabel(chart.x_label, fontsize=STYLE["axes.labelsize"])
        if chart.y_label:
            canvas.supylabel(chart.y_label, fontsize=STYLE["axes.labelsize"])
        _draw_legend(canvas, axes[:number], chart)
        return images_of(canvas)


def _draw_scores(axes: Any, chart: Chart, panel: Panel) -> None:
    values = [end for s in panel.series for p in s.points for end in (p.value, p.low, p.high)]
    ends = [value for value in values if value is not None]
    ends += [value for _, value in panel.references]
    named = dict.fromkeys(name for each in chart.panels for name, _ in each.references)
    looks = dict(zip(named, itertools.cycle(_REFERENCES), strict=False))
    for name, value in panel.references:
        color, dashes = looks[name]
        axes.axhline(value, lw=1.1, zorder=2.5, label=name, color=color, ls=dashes)
    if chart.kind == "bars":
        _draw_bars(axes, panel.series[0])
        low = 0.0
    else:
        _draw_lines(axes, chart, panel)
        low = max(0.0, min(ends) - 0.08 * (max(ends) - min(ends) or 10))
    # Room above, so that no interval ends at the frame.
    axes.set_ylim(low, min(100.0, max(ends) + 0.08 * (max(ends) - low or 10)) or 1.0)
    axes.grid(axis="y", color="#dddddd", lw=0.5, zorder=0)
    axes.set_axisbelow(True)


def _draw_lines(axes: Any, chart: Chart, panel: Panel) -> None:
    places = sorted({point.x for series in panel.series for point in series.points})
    span = (places[-1] - places[0]) or 1.0
    is_log = places[0] > 0 and places[-1] / places[0] >= 50
    if is_log:
        axes.set_xscale("log")
        # The usual labels are mathematics, which no text of a figure is taken for.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter("")
    for number, series in enumerate(panel.series):
        # Side by side, so that intervals do not hide each other.
        shift = 0.0 if is_log else 0.02 * span * (number - (len(panel.series) - 1) / 2)
        look = {
            "color": COLORS[number % len(COLORS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 4,
            "lw": 1.3 if chart.is_continuous else 0,
        }
        axes.errorbar(
            [point.x + shift for point in series.points],
            [point.value for point in series.points],
            yerr=_errors(series),
            elinewidth=1.0,
            capsize=2.5,
            zorder=3,
            **{**look, "lw": 0},
        )
        # A line is not drawn across a gap, which it would hide.
        known = {point.x: point.value for point in series.points}
        heights = [known.get(place, math.nan) for place in places]
        axes.plot([place + shift for place in places], heights, zorder=3, label=series.name, **look)
    if is_log:
        return
    ticks = {point.x: point.tick or f"{point.x:g}" for s in panel.series for point in s.points}
    axes.set_xticks(places, [ticks[place] for place in places])


def _draw_bars(axes: Any, series: Series) -> None:
    places = [point.x for point in series.points]
    axes.bar(
        places,
        [point.value for point in series.points],
        width=0.62,
        color=_BAR,
        label=series.name,
        yerr=_errors(series),
        error_kw={"elinewidth": 1.0, "capsize": 3, "ecolor": "#111111", "zorder": 3},
        zorder=2,
    )
    labels = [point.tick for point in series.points]
    axes.set_xticks(places, labels)
    if sum(map(len, labels)) > 22:
        axes.tick_params(axis="x", rotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_xlim(-0.6, max(places) + 0.6)


def _errors(series: Series) -> list[list[float]] | None:
    if any(point.low is None or point.high is None for point in series.points):
        return None
    # A percentile interval need not hold the value itself.
    return [
        [max(0.0, point.value - (point.low or 0.0)) for point in series.points],
        [max(0.0, (point.high or 0.0) - point.value) for point in series.points],
    ]


def _draw_heatmap(axes: Any, panel: Panel) -> None:
    values = [[math.nan if v is None else v for v in row] for row in panel.values]
    known = [v for row in values for v in row if not math.isnan(v)]
    draw_cells(
        axes,
        values,
        rows=panel.rows,
        columns=panel.columns,
        limits=(min(known, default=0.0), max(known, default=1.0)),
        text=lambda value: f"{value:.1f}",
        font_pt=8,
    )


def _draw_legend(canvas: Any, axes: Sequence[Any], chart: Chart) -> None:
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    baselines = {name for panel in chart.panels for name, _ in panel.references}
    names = sorted(found, key=lambda name: name in baselines)
    if len(names) > 1:
        canvas.legend(
            [found[name] for name in names],
            names,
            loc="outside upper center",
            # About 0.065 inches a letter, 0.6 a handle.
            ncols=max(1, int(canvas.get_figwidth() / (0.6 + 0.065 * max(map(len, names))))),
            frameon=False,
            handlelength=2.6,
        )


@dataclass(frozen=True)
class Point:
    """A score with its interval; scores in percent."""

    x: float
    """Position on the axis; for bars the index."""

    value: float
    """Percent."""

    low: float | None
    """Percent; None without an interval."""

    high: float | None
    """Percent."""

    tick: str = ""
    """What stands under the axis; empty for the number."""


@dataclass(frozen=True)
class Series:
    """Points of one colour."""

    name: str
    """In words; for the legend."""

    points: tuple[Point, ...]
    """From left to right."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    """Task and language."""

    y_label: str
    """Metric and unit."""

    series: tuple[Series, ...] = ()
    """Of lines or bars."""

    references: tuple[tuple[str, float], ...] = ()
    """Baselines: name, percent."""

    rows: tuple[str, ...] = ()
    """Of a heatmap, from the bottom."""

    columns: tuple[str, ...] = ()
    """Of a heatmap."""

    values: tuple[tuple[float | None, ...], ...] = ()
    """Of a heatmap: percent per row and column; None for a gap."""


@dataclass(frozen=True)
class Chart:
    """A figure to draw."""

    key: str
    """Names the file."""

    title: str
    """What it shows."""

    caption: str
    """How to read it."""

    kind: Literal["lines", "bars", "heatmap"]
    """How it is drawn."""

    x_label: str
    """With unit."""

    panels: tuple[Panel, ...]
    """One per task and language."""

    y_label: str = ""
    """Of a heatmap's rows."""

    is_continuous: bool = True
    """Whether neighbouring points may be joined and positions have a scale."""
