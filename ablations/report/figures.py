"""Figures of a report, drawn from its frames: the comparisons, the grid, facts of the experts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from textwrap import fill, wrap
from typing import Any

import pandas as pd

from ablations.drawing.canvas import new_canvas
from ablations.drawing.colors import (
    BETTER_COLOR,
    COLORS,
    MARGIN_COLOR,
    SAME_COLOR,
    UNCLEAR_COLOR,
    WORSE_COLOR,
    ZERO_COLOR,
)
from ablations.machine.safe_text import slug
from ablations.report.analysis import Analysis
from ablations.report.comparisons import BETTER, SAME, UNCLEAR, WORSE
from ablations.report.figure_layout import (
    LINE_IN,
    SMALL_PT,
    WIDTH_IN,
    Figure,
    draw_figure,
    fitting_letters,
)
from ablations.report.grid_figures import grid_figures
from ablations.report.tables import column_name, task_text
from ablations.study.grouping import StudyModel
from ablations.study.schema import EXPERTS, Study
from ablations.study.wording import describe_setting

MOST_ROWS = 48
"""Comparisons that a figure shows; the table has more."""

_MOST_OPEN = 12
"""Comparisons of a figure that is not folded: those fit a screen."""

_FOREST_IN = 3.79
"""Width of a figure of comparisons, whose labels stand above their bars: a phone's."""

_VERDICT_MARKERS = {
    BETTER: (BETTER_COLOR, "^"),
    WORSE: (WORSE_COLOR, "v"),
    SAME: (SAME_COLOR, "s"),
    UNCLEAR: (UNCLEAR_COLOR, "o"),
}
"""Verdict -> colour and marker, which tell it apart in print, too."""


def figures(analysis: Analysis) -> list[Figure]:
    """Return the figures that fit a study: planned comparisons first, then what its grid shows."""
    study, frame, scores = analysis.study, analysis.comparison_frame, analysis.score_frame
    forest = []
    primary = frame[(frame["family"] == "primary") & frame["p"].notna()]
    if 0 < len(primary) <= MOST_ROWS:
        forest.append(_forest(primary, study))
    grids = [*grid_figures(analysis, scores)]
    first, second = (forest, grids) if study.report.primary.is_stated else (grids, forest)
    return [*first, *second, *_facts(scores, study, analysis.models)]


def _forest(frame: pd.DataFrame, study: Study) -> Figure:
    """Draw one row per comparison and one panel per task, with the margin as a band."""
    panels = [
        part.to_dict("records") for _, part in frame.groupby(["task", "language"], sort=False)
    ]

    def draw() -> Any:
        letters, extra = fitting_letters(_FOREST_IN - 0.2, SMALL_PT), 1.0
        names = [
            [wrap(f"{row['first']} − {row['second']}", letters) for row in rows] for rows in panels
        ]
        heights = [sum(len(lines) + extra for lines in panel) for panel in names]
        titles = [fill(task_text(rows[0], frame), letters) for rows in panels]
        lines = sum(heights) + sum(1.6 + title.count("\n") for title in titles)
        canvas = new_canvas(_FOREST_IN, 0.55 + lines * LINE_IN)
        grid = canvas.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)
        margin = study.report.margin
        for axes, rows, panel, height, title in zip(
            grid[:, 0], panels, names, heights, titles, strict=True
        ):
            top = 0.0
            for row, words in zip(rows, panel, strict=True):
                axes.annotate(
                    "\n".join(words),
                    (0, top + len(words)),
                    xycoords=("axes fraction", "data"),
                    va="bottom",
                    fontsize=SMALL_PT,
                )
                bar, end = top + len(words), top + len(words) + extra
                axes.fill_between([-margin, margin], bar, end, color=MARGIN_COLOR, lw=0)
                axes.plot([0, 0], [bar, end], color=ZERO_COLOR, lw=0.8)
                place = (bar + end) / 2
                color, marker = _VERDICT_MARKERS.get(row["verdict"], _VERDICT_MARKERS[UNCLEAR])
                axes.plot([100 * row["low"], 100 * row["high"]], [place] * 2, color=color, lw=1.8)
                axes.plot(100 * row["difference"], place, marker, color=color, ms=5.5)
                top = end
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_ylim(height, 0)
            axes.set_title(title, loc="left", fontweight="bold")
        grid[-1, 0].set_xlabel("difference in points")
        return canvas

    is_stated = study.report.primary.is_stated
    counts = frame["verdict"].value_counts()
    return draw_figure(
        "planned" if is_stated else "default",
        "The planned comparisons" if is_stated else "The comparisons by default",
        f"First minus second with {study.evaluate.level:.0%} intervals (not corrected). Grey band: "
        f"within ±{study.report.margin:g} points. ▲ green: better; ▼ orange: worse; ■ blue: no "
        "relevant difference; ● grey: cannot tell (p corrected).",
        f"Differences with intervals, of {len(frame)} comparisons: "
        f"{', '.join(f'{count} {verdict}' for verdict, count in counts.items())}.",
        draw,
        summary=f"{len(frame)} comparisons" if len(frame) > _MOST_OPEN else "",
    )


def _facts(scores: pd.DataFrame, study: Study, models: Sequence[StudyModel]) -> Iterator[Figure]:
    """Draw scores over the facts of the experts that a study names, such as their divergence."""
    for at, fact in enumerate(study.report.facts):
        places = {}
        for model in models:
            if model.kind == "recipe":
                value = study.fact(fact, model.given[0])
                if value is not None:
                    places[model.label] = value
        part = scores[scores["model"].isin(places) & scores["low"].notna()]
        if part["model"].nunique() < 2:
            continue
        name = fact.removeprefix(EXPERTS).replace("_", " ").replace(".", " expert: ", 1)
        groups = {model.label: _rest(model) for model in models}
        part = part.assign(x=part["model"].map(places), group=part["model"].map(groups))
        panels = [panel for _, panel in part.groupby(["task", "language"])]

        def draw(panels: Sequence[pd.DataFrame] = panels, name: str = name) -> Any:
            across = max(1, min(len(panels), int(WIDTH_IN / 2.6)))
            down = -(-len(panels) // across)
            panel_in = min(WIDTH_IN / across, 5.0)
            canvas = new_canvas(panel_in * across, 2.8 * down)
            grid = canvas.subplots(down, across, squeeze=False).ravel()
            for axis in grid[len(panels) :]:
                axis.set_visible(False)
            for axis, panel in zip(grid, panels, strict=False):
                groups = panel.groupby("group", sort=False)
                for (group, points), marker, color in zip(
                    groups, itertools.cycle("os^Dv*P"), itertools.cycle(COLORS)
                ):
                    value = 100 * points["value"]
                    below = (value - 100 * points["low"]).clip(lower=0)
                    above = (100 * points["high"] - value).clip(lower=0)
                    axis.errorbar(
                        points["x"],
                        value,
                        [below, above],
                        fmt=marker,
                        ms=4.5,
                        color=color,
                        label=group,
                    )
                if panel["group"].nunique() > 1:
                    axis.legend(fontsize=SMALL_PT)
                title = fill(column_name(panel.iloc[0], scores), fitting_letters(panel_in - 0.6))
                axis.set_title(title, loc="left", fontweight="bold")
                axis.set_xlabel(fill(name, fitting_letters(panel_in - 0.6)))
            return canvas

        yield draw_figure(
            f"{slug(name)}-{at + 1}",
            f"Score over {name}",
            f"With {study.evaluate.level:.0%} intervals.",
            f"Scores with intervals of {part['model'].nunique()} models over {name}.",
            draw,
        )


def _rest(model: StudyModel) -> str:
    """Return a model's setting in words, without its experts."""
    return describe_setting(
        {name: value for name, value in model.setting.items() if not name.startswith(EXPERTS)}
    )
