"""Draws scores over a number as lines, with the names beside them. Knows looks, no meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from ablations.drawing.canvas import COLORS, MARKERS
from ablations.drawing.figure import Drawing, draw_figure, spread

_BASELINE = "#777777"
_SIZE_IN = (3.7, 2.6)
_LABEL_PT = 7.5


@dataclass(frozen=True)
class Point:
    """A score with its interval; scores in percent."""

    x: float
    """Position on the axis."""

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
    """In words; stands beside the last point."""

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
    """The lines."""

    references: tuple[tuple[str, float], ...] = ()
    """Baselines: name, percent."""


@dataclass(frozen=True)
class Chart:
    """A figure of lines."""

    key: str
    """Names the file."""

    title: str
    """What it shows."""

    caption: str
    """How to read it."""

    x_label: str
    """With unit."""

    panels: tuple[Panel, ...]
    """One per task and language."""

    is_continuous: bool = True
    """Whether neighbouring points may be joined and positions have a scale."""


def draw_chart(chart: Chart) -> Drawing:
    """Return the drawing of `chart`; see `draw_figure`."""
    painters = [partial(_draw, chart, panel) for panel in chart.panels]
    return draw_figure(chart.key, painters, _SIZE_IN)


def _draw(chart: Chart, panel: Panel, axes: Any) -> None:
    values = [end for s in panel.series for p in s.points for end in (p.value, p.low, p.high)]
    ends = [value for value in values if value is not None]
    ends += [value for _, value in panel.references]
    for _, value in panel.references:
        axes.axhline(value, lw=0.9, zorder=1.5, color=_BASELINE, ls=(0, (4, 2)))
    _draw_lines(axes, chart, panel)
    # Room on both sides, so that no line or interval lies on the frame.
    room = 0.08 * max(10.0, max(ends) - min(ends))
    limits = min(ends) - room, max(ends) + room
    axes.set_ylim(*limits)
    axes.set_yticks([tick for tick in axes.get_yticks() if max(0, limits[0]) <= tick <= limits[1]])
    if max(ends) <= 100:
        axes.set_yticks([tick for tick in axes.get_yticks() if tick <= 100])
    axes.set_ylim(*limits)
    axes.grid(axis="y", color="#e6e6e6", lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(panel.y_label)
    _draw_names(axes, panel, limits)


def _draw_names(axes: Any, panel: Panel, limits: tuple[float, float]) -> None:
    """Write the name of every baseline and line at the right, at its own height where it fits."""
    names = [(name, value, _BASELINE) for name, value in panel.references]
    names += [
        (series.name, series.points[-1].value, COLORS[number % len(COLORS)])
        for number, series in enumerate(panel.series)
        if series.points
    ]
    gap = (limits[1] - limits[0]) * 1.25 * _LABEL_PT / 72 / (_SIZE_IN[1] - 0.9)
    places = spread([value for _, value, _ in names], gap, *limits)
    for (name, value, color), place in zip(names, places, strict=True):
        axes.annotate(
            name,
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(1.03, place),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=_LABEL_PT,
            color=color,
            # To the middle of the left edge: a line to the centre crosses the names between.
            arrowprops={
                **{"arrowstyle": "-", "lw": 0.5, "color": color},
                **{"shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
            },
        )


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
            capsize=0,
            zorder=3,
            **{**look, "lw": 0},
        )
        # A line is not drawn across a gap, which it would hide.
        known = {point.x: point.value for point in series.points}
        heights = [known.get(place, math.nan) for place in places]
        axes.plot([place + shift for place in places], heights, zorder=3, **look)
    if is_log:
        return
    ticks = {point.x: point.tick or f"{point.x:.3g}" for s in panel.series for point in s.points}
    axes.set_xticks(places, [ticks[place] for place in places])


def _errors(series: Series) -> list[list[float]] | None:
    if any(point.low is None or point.high is None for point in series.points):
        return None
    # A percentile interval need not hold the value itself.
    return [
        [max(0.0, point.value - (point.low or 0.0)) for point in series.points],
        [max(0.0, (point.high or 0.0) - point.value) for point in series.points],
    ]
