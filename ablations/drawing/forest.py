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
_TITLE_LETTERS, _ROW_LETTERS = 24, 26
"""Of a line of a title, and of the name of a row."""

_LETTER_IN = 0.062
"""Width of a letter of a name."""

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
    rows = [
        textwrap.fill(row, _ROW_LETTERS, break_on_hyphens=False, break_long_words=False)
        for row in forest.rows
    ]
    longest = max(len(line) for row in rows for line in row.splitlines())
    titles = [textwrap.fill(each.title, _TITLE_LETTERS) for each in forest.panels]
    lines = max(title.count("\n") for title in titles)
    # Titles of as many lines, so that the rows of all panels are at one height.
    titles = ["\n" * (lines - title.count("\n")) + title for title in titles]
    row_in = _ROW_IN * (1 + 0.45 * max(row.count("\n") for row in rows))
    height = row_in * (len(rows) + 0.6) + 0.95 + 0.15 * lines
    painters = [
        partial(_draw, forest, panel, title, rows)
        for panel, title in zip(forest.panels, titles, strict=True)
    ]
    return draw_figure(forest.key, painters, (2.1 + _LETTER_IN * longest, height))


def _draw(forest: Forest, panel: ForestPanel, title: str, rows: Sequence[str], axes: Any) -> None:
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
    axes.set_yticks(places, rows)
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
    axes.set_title(title, loc="left", fontweight="bold", pad=14)
    axes.set_xlabel("difference in points")


def _limits(estimates: Sequence[Estimate | None]) -> tuple[float, float]:
    """Return the ends of the axis: all intervals and zero, with room; ten points at least."""
    ends = [end for each in estimates if each is not None for end in (each.low, each.high)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    short = max(0.0, 10.0 - (high - low)) / 2
    room = 0.04 * max(10.0, high - low)
    return low - short - room, high + short + room
