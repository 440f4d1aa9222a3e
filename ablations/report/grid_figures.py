"""Figures of a grid of parameters: a curve over one, a map over two, several maps over three."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

import pandas as pd

from ablations.drawing.canvas import Place, draw_cells, new_canvas
from ablations.drawing.colors import COLORS, SUBTITLE_COLOR
from ablations.report.analysis import Analysis
from ablations.report.comparisons import BETTER, TaskComparison
from ablations.report.figure_layout import (
    LINE_IN,
    SMALL_PT,
    WIDTH_IN,
    Draw,
    Figure,
    draw_figure,
    fitting_letters,
)
from ablations.report.grids import ParameterAxis
from ablations.report.sentences import best_sentences
from ablations.report.tables import column_name
from ablations.statistics.as_text import number
from ablations.statistics.means_and_p_values import alpha_of
from ablations.study.schema import Study
from ablations.study.wording import kind_text

MOST_PANELS = 9
"""Tasks that a map or curve shows; of more only the primary ones."""

_LINES = tuple(
    zip(COLORS[1:], ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 3))), strict=True)
)
"""Color and dash of each kind of baseline."""

_CELL_IN = 0.32
"""Height of a cell of a map."""

_LOG_RATIO = 50
"""Largest over smallest value from which an axis is logarithmic."""


def grid_figures(analysis: Analysis, scores: pd.DataFrame) -> Iterator[Figure]:
    """Draw the scores of a grid: a curve over one axis, a map over two, several maps over three.

    Nothing is drawn of a study whose merges are no grid.

    Args:
        analysis: of the study.
        scores: rows of its `score_frame`, of the tasks to draw.
    """
    study, grid, best = analysis.study, analysis.grid, analysis.best
    if grid is None or best is None:
        return
    part = scores[scores["model"].isin({*grid.places.values()}) & scores["value"].notna()]
    if part.groupby(["task", "language"]).ngroups > MOST_PANELS:
        part = part[part["is_primary"]]
    panels = [panel for _, panel in part.groupby(["task", "language"], sort=False)]
    if not panels:
        return
    alt = " ".join(best_sentences(best, part)) or "Scores without values of items."
    if len(grid.axes) == 1:
        title, caption, draw = _curve(grid.axes[0], grid.places, panels, scores, study, best)
        yield draw_figure("curve", title, caption, alt, draw)
        return
    wins, won = _wins([row for row in analysis.comparisons if row.family == "primary"])
    # A third axis has a map for each of its values: the one with the fewest, the last of equals.
    sizes = [len(axis.ticks) for axis in grid.axes]
    level = study.evaluate.level
    third = len(sizes) - 1 - sizes[::-1].index(min(sizes)) if len(sizes) > 2 else None
    for value in range(1 if third is None else sizes[third]):
        places = {
            tuple(at for number, at in enumerate(place) if number != third): label
            for place, label in grid.places.items()
            if third is None or place[third] == value
        }
        axes = [axis for number, axis in enumerate(grid.axes) if number != third]
        title, caption, draw = _map(axes, places, panels, scores, wins, best, level)
        key = "map"
        if third is not None:
            key = f"map-{value + 1}"
            title += f"; {grid.axes[third].title}: {grid.axes[third].ticks[value]}"
        yield draw_figure(key, title, caption + won, alt, draw)


def _wins(primary: Sequence[TaskComparison]) -> tuple[set[tuple[str, str, str]], str]:
    """Return task, language and model of each that is better than all its rivals; what ▲ means.

    The experts of a model decide which rivals are its own.
    """
    groups: dict[tuple[str, str, str], list[TaskComparison]] = {}
    for row in primary:
        groups.setdefault((row.task, row.language, row.first), []).append(row)
    wins = {at for at, part in groups.items() if all(row.verdict == BETTER for row in part)}
    if not wins:
        return wins, ""
    rivals = {tuple(row.second for row in part) for part in groups.values()}
    names = (
        " and ".join(next(iter(rivals))) if len(rivals) == 1 else "all rivals of its own experts"
    )
    return wins, f" ▲: better than {names} (primary comparisons, p corrected)."


def _best_rule(star: str, frame: str, level: float) -> str:
    return (
        f"{star}: the best score. {frame}: what cannot be told from it (p of the difference at "
        f"least {alpha_of(level):g}, corrected for all pairs of models of the grid)."
    )


def _map(
    axes: Sequence[ParameterAxis],
    places: Mapping[tuple[int, ...], str],
    panels: Sequence[pd.DataFrame],
    scores: pd.DataFrame,
    wins: Collection[tuple[str, str, str]],
    best: pd.DataFrame,
    level: float,
) -> tuple[str, str, Draw]:
    """Return title, caption and drawing of scores over two axes, with one panel per task."""
    rows, columns = axes
    cells = {(row, column): label for (row, column), label in places.items()}
    if rows.numbers is not None and columns.numbers is None:  # names have more room at the side
        rows, columns = columns, rows
        cells = {(row, column): label for (column, row), label in places.items()}
    if rows.numbers is None:  # numbers rise from the bottom, names are read from the top
        rows = rows._replace(ticks=rows.ticks[::-1])
        cells = {(len(rows.ticks) - 1 - row, at): label for (row, at), label in cells.items()}

    def draw() -> Any:
        names = [_unbroken(tick, 24) for tick in rows.ticks]
        heads = [_unbroken(tick, 12) for tick in columns.ticks]
        side_in = 0.5 + max(_width_in(name) for name in names)
        cell_in = max(0.36, *(_width_in(head) + 0.08 for head in heads))
        least_in = side_in + max(cell_in * len(heads), 2.0)
        across = max(1, min(len(panels), int(WIDTH_IN / least_in)))
        most_in = side_in + max(cell_in, 1.2) * len(heads)
        panel_in = max(least_in, min(WIDTH_IN / across, most_in))
        titles = [_panel_title(panel, scores, panel_in - side_in) for panel in panels]
        foot = fill(columns.title, fitting_letters(panel_in - side_in))
        name_lines = max(name.count("\n") for name in names) + 1
        height_in = max(_CELL_IN, LINE_IN * name_lines, 1.1 / len(names)) * len(names)
        lines = 4.5 + max(title.count("\n") + line.count("\n") for title, line in titles)
        lines += foot.count("\n") + max(head.count("\n") for head in heads)
        down = -(-len(panels) // across)
        canvas = new_canvas(panel_in * across, (lines * LINE_IN + height_in) * down)
        grid = canvas.subplots(down, across, squeeze=False).ravel()
        for each in grid[len(panels) :]:
            each.set_visible(False)
        for each, panel, title in zip(grid, panels, titles, strict=False):
            _draw_scores(each, panel, cells, names, heads, wins, best)
            _set_title(each, *title)
            each.tick_params(axis="x", labelrotation=0)  # the columns are as wide as their names
            each.set_xlabel(foot)
            each.set_ylabel(fill(rows.title, fitting_letters(height_in + 0.3)))
        return canvas

    finished = {label for panel in panels for label in panel["model"]}
    is_whole = len(cells) == len(rows.ticks) * len(columns.ticks)
    has_stars = (best["is_open"] & best["is_best"]).any()
    caption = [
        "The more a field stands out, the better, with a scale for each task.",
        _best_rule("★", "Framed", level) if has_stars else "",
        "" if is_whole else "Empty: not in the study.",
        "" if finished >= {*cells.values()} else "Hatched: no result.",
    ]
    return f"Score by {rows.title} and {columns.title}", " ".join(filter(None, caption)), draw


def _draw_scores(
    axes: Any,
    panel: pd.DataFrame,
    cells: Mapping[Place, str],
    rows: Sequence[str],
    columns: Sequence[str],
    wins: Collection[tuple[str, str, str]],
    best: pd.DataFrame,
) -> None:
    """Draw the scores of one task as cells; darker is better, also where a lower score is."""
    first = panel.iloc[0]
    is_share, sign = bool(first["is_share"]), 1 if first["higher_is_better"] else -1
    values = dict(zip(panel["model"], sign * panel["value"], strict=True))
    low = min(values.values())
    span = max(max(values.values()) - low, 0.01)
    open_models, best_models = _marked(best, panel)
    marks = {}
    for place, label in cells.items():
        star = "★" if label in best_models else ""
        win = "▲" if (first["task"], first["language"], label) in wins else ""
        if star or win:
            marks[place] = star + win
    places = [[(row, column) for column in range(len(columns))] for row in range(len(rows))]
    draw_cells(
        axes,
        [[values.get(cells.get(place, ""), math.nan) for place in line] for line in places],
        rows=rows,
        columns=columns,
        limits=(low - 0.15 * span, low + span),  # the lowest has a tint: white is not in the study
        text=lambda value: number(sign * value, is_share),
        font_pt=SMALL_PT,
        marks=marks,
        framed={place for place, label in cells.items() if label in open_models},
        absent=[place for line in places for place in line if place not in cells],
    )


def _curve(
    axis: ParameterAxis,
    places: Mapping[tuple[int, ...], str],
    panels: Sequence[pd.DataFrame],
    scores: pd.DataFrame,
    study: Study,
    best: pd.DataFrame,
) -> tuple[str, str, Draw]:
    """Return title, caption and drawing of scores over one axis, with one panel per task."""
    numbers = axis.numbers or ()
    points = {numbers[at]: label for (at,), label in sorted(places.items())}
    is_log = min(numbers) > 0 and max(numbers) > _LOG_RATIO * min(numbers)
    kinds = [kind for kind in study.baseline if (scores["kind"] == kind).any()]

    def draw() -> Any:
        across = max(1, min(len(panels), int(WIDTH_IN / 2.6)))
        down = -(-len(panels) // across)
        panel_in = min(WIDTH_IN / across, 5.0)
        titles = [
            fill(column_name(panel.iloc[0], scores), fitting_letters(panel_in - 0.6))
            for panel in panels
        ]
        height_in = 2.5 + LINE_IN * max(title.count("\n") for title in titles)
        canvas = new_canvas(panel_in * across, height_in * down + 0.3)
        grid = canvas.subplots(down, across, squeeze=False).ravel()
        for each in grid[len(panels) :]:
            each.set_visible(False)
        for each, panel, title in zip(grid, panels, titles, strict=False):
            if is_log:
                each.set_xscale("log")
            _draw_baselines(each, panel, scores, kinds)
            _draw_points(each, panel, points, best)
            _set_ticks(each, axis, panel_in - 0.8)
            each.set_title(title, loc="left", fontweight="bold")
            each.set_xlabel(fill(axis.title, fitting_letters(panel_in - 0.6)))
        if kinds:
            lines = {
                name: handle
                for each in grid
                for handle, name in zip(*each.get_legend_handles_labels(), strict=True)
            }
            canvas.legend(
                [*lines.values()],
                [*lines],
                loc="outside lower center",
                ncols=len(kinds),
                frameon=False,
                fontsize=SMALL_PT,
            )
        return canvas

    has_stars = (best["is_open"] & best["is_best"]).any()
    level = study.evaluate.level
    rule = _best_rule("Star", "Filled", level) + " Hollow: worse." if has_stars else ""
    caption = f"With {level:.0%} intervals. {rule}".strip()
    return f"Score by {axis.title}", caption, draw


def _draw_points(
    axes: Any, panel: pd.DataFrame, points: Mapping[float, str], best: pd.DataFrame
) -> None:
    """Draw the scores of one task with their intervals, in points where they are shares."""
    scale = 100 if panel["is_share"].iloc[0] else 1
    by_model = (scale * panel.set_index("model")[["value", "low", "high"]]).to_dict("index")
    places = {x: by_model[label] for x, label in points.items() if label in by_model}
    axes.plot([*places], [at["value"] for at in places.values()], color=COLORS[0], lw=1.2)
    open_models, best_models = _marked(best, panel)
    for x, at in places.items():
        is_best = points[x] in best_models
        axes.plot([x, x], [at["low"], at["high"]], color=COLORS[0], lw=1.2)
        axes.plot(
            x,
            at["value"],
            "*" if is_best else "o",
            ms=9 if is_best else 5.5,
            color=COLORS[0],
            markerfacecolor=COLORS[0] if points[x] in open_models or not open_models else "white",
        )


def _marked(best: pd.DataFrame, panel: pd.DataFrame) -> tuple[set[str], set[str]]:
    """Return which models of a panel cannot be told from the best, and which are the best.

    None is marked where all score the same, or where nothing could be tested.
    """
    part = _of_panel(best, panel)
    best_models = {*part[part["is_open"] & part["is_best"]]["model"]}
    return ({*part[part["is_open"]]["model"]} if best_models else set()), best_models


def _draw_baselines(
    axes: Any, panel: pd.DataFrame, scores: pd.DataFrame, kinds: Sequence[str]
) -> None:
    """Draw the score of every baseline as a line across, with a dash for each kind."""
    first = panel.iloc[0]
    scale = 100 if first["is_share"] else 1
    for at, kind in enumerate(kinds):
        part = _of_panel(scores[scores["kind"] == kind], panel)
        for line, value in enumerate(part["value"].dropna()):
            axes.axhline(
                scale * value,
                color=_LINES[at % len(_LINES)][0],
                ls=_LINES[at % len(_LINES)][1],
                lw=1.1,
                label="" if line else kind_text(kind),
            )


def _set_ticks(axes: Any, axis: ParameterAxis, width_in: float) -> None:
    """Set a tick at every value, and its text where the one before leaves room for it."""
    values = [
        math.log(value) if axes.get_xscale() == "log" else value for value in axis.numbers or ()
    ]
    in_per_unit = width_in / (max(values) - min(values))
    names, end = [], -math.inf
    for value, tick in zip(values, axis.ticks, strict=True):
        center, half = (value - min(values)) * in_per_unit, _width_in(tick) / 2 + 0.03
        is_shown = center - half > end
        names.append(tick if is_shown else "")
        end = center + half if is_shown else end
    axes.set_xticks(axis.numbers, names, fontsize=SMALL_PT)
    axes.minorticks_off()


def _of_panel(frame: pd.DataFrame, panel: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a frame on the task and language of a panel."""
    first = panel.iloc[0]
    return frame[(frame["task"] == first["task"]) & (frame["language"] == first["language"])]


def _panel_title(panel: pd.DataFrame, scores: pd.DataFrame, width_in: float) -> tuple[str, str]:
    """Return the task of a panel, and the scores of its baselines if each is one model."""
    first = panel.iloc[0]
    part = _of_panel(scores[scores["kind"] != "recipe"], panel)
    texts = [
        f"{row['model']} {number(row['value'], row['is_share'])}"
        for row in part[part["value"].notna()].to_dict("records")
    ]
    is_shown = part["kind"].is_unique  # else the table has them, with their experts
    return (
        fill(column_name(first, scores), fitting_letters(width_in)),
        fill(", ".join(texts) if is_shown else "", fitting_letters(width_in, SMALL_PT)),
    )


def _set_title(axes: Any, title: str, line: str) -> None:
    """Set a title in bold with a plain line below it."""
    lines = line.count("\n") + 1 if line else 0
    axes.set_title(title, loc="left", fontweight="bold", pad=5 + 10.5 * lines)
    axes.annotate(
        line,
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL_PT,
        color=SUBTITLE_COLOR,
        annotation_clip=False,
    )


def _width_in(text: str) -> float:
    """Return about how wide a small text is."""
    return max(map(len, text.split("\n"))) * 0.62 * SMALL_PT / 72


def _unbroken(text: str, letters: int) -> str:
    """Return a name in lines without breaking its parts, which may be wider than `letters`."""
    return fill(text, letters, break_long_words=False, break_on_hyphens=False)
