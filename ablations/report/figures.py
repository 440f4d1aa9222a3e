"""Figures of a report, drawn from its frames: comparisons, map of b and u, facts of experts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ablations.drawing.canvas import COLORS, draw_cells, drawing, images_of, new_canvas
from ablations.machine.names import slug
from ablations.report.comparisons import BETTER, SAME, WORSE
from ablations.report.tables import column_name, task_text
from ablations.runs.models import StudyModel
from ablations.runs.results import Results
from ablations.study.schema import EXPERTS, Study
from ablations.study.wording import describe_setting

MOST_ROWS = 48
"""Comparisons that a figure shows; the table has more."""

_VERDICT_COLORS = {BETTER: COLORS[2], WORSE: COLORS[1], SAME: COLORS[0]}
_PLACE = ("bottom_layers", "top_layers")


class Figure(NamedTuple):
    """A drawn figure."""

    key: str
    title: str
    caption: str
    images: dict[str, bytes]
    """File name extension (``svg``, ``png``, ``pdf``) -> content."""


def figures(frame: pd.DataFrame, scores: pd.DataFrame, results: Results) -> list[Figure]:
    """Return the figures that fit a study, the one that answers first.

    Args:
        frame: comparisons.
        scores: from `score_frame`.
        results: that both are of.
    """
    study, models = results.study, results.models
    figures = [*_maps(frame, scores, models)]
    primary = frame[(frame["family"] == "primary") & frame["p"].notna()]
    if 0 < len(primary) <= MOST_ROWS:
        figures.append(_forest(primary, study))
    return [*figures, *_facts(scores, study, models)]


def _forest(frame: pd.DataFrame, study: Study) -> Figure:
    """Draw one row per comparison and one panel per task, with the margin as a band."""
    panels = list(frame.groupby(["task", "language"], sort=False))
    heights = [len(part) for _, part in panels]

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(
            len(panels),
            1,
            squeeze=False,
            sharex=True,
            height_ratios=[height + 0.8 for height in heights],
        )
        for axes, (_, part) in zip(grid[:, 0], panels, strict=True):
            rows = part.to_dict("records")
            axes.axvspan(-study.report.margin, study.report.margin, color="#e8e8e8", lw=0)
            axes.axvline(0, color="#666666", lw=0.8)
            for at, row in enumerate(rows):
                color = _VERDICT_COLORS.get(row["verdict"], "#555555")
                axes.plot([100 * row["low"], 100 * row["high"]], [at, at], color=color, lw=1.6)
                axes.plot(100 * row["difference"], at, "o", color=color, ms=5)
            names = [f"{row['first']} − {row['second']}" for row in rows]
            axes.set_yticks(range(len(rows)), [textwrap.fill(name, 36) for name in names])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            axes.set_title(task_text(rows[0], frame), loc="left", fontweight="bold")
        grid[-1, 0].set_xlabel("difference in points")

    is_planned = study.report.primary.is_planned
    return _figure(
        "planned" if is_planned else "default",
        "The planned comparisons" if is_planned else "The comparisons by default",
        f"First minus second with {study.evaluate.level:.0%} intervals (not corrected). Grey: "
        f"within ±{study.report.margin:g} points. Green: better; orange: worse; blue: no relevant "
        "difference; dark grey: cannot tell (p corrected).",
        draw,
        (6.4, 0.6 + sum(0.34 * height + 0.42 for height in heights)),
    )


def _maps(
    frame: pd.DataFrame, scores: pd.DataFrame, models: Sequence[StudyModel]
) -> Iterator[Figure]:
    """Draw scores over b and u, one panel per task, where the study has a grid of them."""
    places: dict[tuple[Any, Any], str] = {}
    for model in models:
        for setting in (model.setting, *model.same):
            if set(_PLACE) <= setting.keys() and setting.get("placement", "outer") == "outer":
                place = (setting["bottom_layers"], setting["top_layers"])
                if places.setdefault(place, model.label) != model.label:
                    return  # another parameter varies, too: a place has several scores
    bottoms = sorted({bottom for bottom, _ in places})
    tops = sorted({top for _, top in places})
    part = scores[scores["is_share"] & scores["model"].isin(places.values())]
    part = part[part["value"].notna()]
    panels = list(part.groupby(["task", "language"], sort=False))
    if len(places) < 9 or min(len(bottoms), len(tops)) < 3 or not panels:
        return
    primary = frame[frame["family"] == "primary"]
    rivals = list(dict.fromkeys(primary["second"]))
    beaten = primary[primary["verdict"] == BETTER].groupby(["task", "language", "first"]).size()
    columns = min(3, len(panels))

    def draw(canvas: Any) -> None:
        grid = canvas.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes, (key, rows) in zip(grid, panels, strict=False):
            values = dict(zip(rows["model"], 100 * rows["value"], strict=True))
            numbers = [[values.get(places.get((b, u)), math.nan) for u in tops] for b in bottoms]
            low, high = min(values.values()), max(values.values())
            draw_cells(
                axes,
                numbers,
                rows=[str(b) for b in bottoms],
                columns=[str(u) for u in tops],
                limits=(low, max(high, low + 1.0)),
                text=lambda value: f"{value:.1f}",
                font_pt=7.0,
            )
            for (b, u), label in places.items():
                if rivals and beaten.get((*key, label)) == len(rivals):
                    x, y = tops.index(u), bottoms.index(b)
                    corners = [x, x + 1, x + 1, x, x], [y, y, y + 1, y + 1, y]
                    axes.plot(*corners, color="black", lw=1.4, clip_on=False)
            axes.set_title(column_name(rows.iloc[0], scores), loc="left", fontweight="bold")
            axes.set_xlabel("u: top layers")
        grid[0].set_ylabel("b: bottom layers")

    is_framed = bool((beaten == len(rivals)).any())
    framed = f" Framed: better than {' and '.join(rivals)} (p corrected)." if is_framed else ""
    yield _figure(
        "map",
        "Score by layers from the language expert at the bottom (b) and the top (u)",
        f"Darker is higher, with a scale for each task.{framed} Hatched: no result.",
        draw,
        (
            columns * max(3.0, 0.42 * len(tops) + 0.5),
            -(-len(panels) // columns) * (0.34 * len(bottoms) + 0.8),
        ),
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
        panels = list(part.groupby(["task", "language"]))

        def draw(canvas: Any, panels: Any = panels, name: str = name) -> None:
            grid = canvas.subplots(1, len(panels), squeeze=False)[0]
            for axis, (_, rows) in zip(grid, panels, strict=True):
                for group, points in rows.groupby("group", sort=False):
                    value = 100 * points["value"]
                    below = (value - 100 * points["low"]).clip(lower=0)
                    above = (100 * points["high"] - value).clip(lower=0)
                    axis.errorbar(points["x"], value, [below, above], fmt="o", ms=4, label=group)
                if rows["group"].nunique() > 1:
                    axis.legend(fontsize=6)
                axis.set_title(column_name(rows.iloc[0], scores), loc="left", fontweight="bold")
                axis.set_xlabel(textwrap.fill(name, 34))

        key = f"{slug(name)}-{at + 1}"
        size_in = (max(3.6, 2.9 * len(panels)), 2.8)
        yield _figure(key, f"Score over {name}", "With intervals.", draw, size_in)


def _rest(model: StudyModel) -> str:
    """Return a model's setting in words, without its experts."""
    return describe_setting(
        {name: value for name, value in model.setting.items() if not name.startswith(EXPERTS)}
    )


def _figure(
    key: str,
    title: str,
    caption: str,
    draw: Callable[[Any], None],
    size_in: tuple[float, float],
) -> Figure:
    with drawing(key):
        canvas = new_canvas(*size_in)
        draw(canvas)
        return Figure(key, title, caption, images_of(canvas))
