"""Differences with their intervals, a row each. Knows looks; not what the numbers mean."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ablations.drawing.canvas import COLORS
from ablations.drawing.figure import Drawing, draw_figure

_ROW_IN = 0.2
_TITLE_LETTERS = 24
"""Of a line of the title."""

_GREY = "#777777"


@dataclass(frozen=True)
class Estimate:
    """A difference with its interval, in points."""

    value: float
    """The difference."""

    low: float
    """Lower end of the interval."""

    high: float
    """Upper end."""


@dataclass(frozen=True)
class ForestPanel:
    """The differences on one score."""

    title: str
    """Task and language."""

    estimates: tuple[Estimate | None, ...]
    """One per row; None for a gap."""


@dataclass(frozen=True)
class Forest:
    """A forest plot."""

    key: str
    """Names the file."""

    title: str
    """What it shows."""

    caption: str
    """How to read it."""

    rows: tuple[str, ...]
    """What is compared, from the top; the baselines first."""

    baselines: int
    """How many of the rows are baselines."""

    reference: str
    """What all rows are compared with."""

    panels: tuple[ForestPanel, ...]
    """One per score."""


def draw_forest(forest: Forest) -> Drawing:
    """Return the drawing of `forest`; see `draw_figure`."""
    lines = max(len(textwrap.wrap(each.title, _TITLE_LETTERS)) for each in forest.panels)
    height = _ROW_IN * (len(forest.rows) + 0.6) + 0.8 + 0.15 * lines
    painters = [partial(_draw, forest, panel) for panel in forest.panels]
    return draw_figure(forest.key, painters, (3.45, height))


def _draw(forest: Forest, panel: ForestPanel, axes: Any) -> None:
    # A little room between the baselines and the others.
    places = [row + 0.6 * (row >= forest.baselines > 0) for row in range(len(forest.rows))]
    axes.axvline(0, color="#444444", lw=0.8, zorder=1)
    for row, (place, estimate) in enumerate(zip(places, panel.estimates, strict=True)):
        if estimate is None:
            axes.text(0, place, " no result", va="center", fontsize=7, color=_GREY)
            continue
        color = _GREY if row < forest.baselines else COLORS[0]
        is_clear = estimate.low > 0 or estimate.high < 0
        axes.plot([estimate.low, estimate.high], [place, place], color=color, lw=1.2, zorder=2)
        axes.plot(
            [estimate.value],
            [place],
            marker="o",
            markersize=4.5,
            color=color,
            markerfacecolor=color if is_clear else "white",
            zorder=3,
        )
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlim(*_limits(panel.estimates))
    axes.set_yticks(places, forest.rows)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6", lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.annotate(
        forest.reference,
        (0, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        fontsize=7.5,
        color="#444444",
    )
    title = textwrap.fill(panel.title, _TITLE_LETTERS)
    axes.set_title(title, loc="left", fontweight="bold", pad=14)
    axes.set_xlabel("difference in points")


def _limits(estimates: Sequence[Estimate | None]) -> tuple[float, float]:
    """Return the ends of the axis: all intervals and zero, with room; ten points at least."""
    ends = [end for each in estimates if each is not None for end in (each.low, each.high)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    short = max(0.0, 10.0 - (high - low)) / 2
    room = 0.04 * max(10.0, high - low)
    return low - short - room, high + short + room
