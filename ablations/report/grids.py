"""The grid of a study: the parameters in which its merges differ; how far each is from the best.

Parameters that only change together, such as both transition zones, are one axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ablations.report.comparisons import compare_sides, planned_cells, rows_of
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.results import Results
from ablations.statistics.means_and_p_values import alpha_of
from ablations.study.grouping import StudyModel
from ablations.study.schema import EXPERTS, Study, Value
from ablations.study.wording import describe_value, setting_key
from layerswap_method.methods.layer_swap import LETTERS

MOST_AXES = 3
"""Axes that a figure shows: two of a map, and one of several maps."""

_NOT_SET = "not set"
"""Stands for the value of a parameter that a setting does not name."""

_BEST_COLUMNS = (
    "model",
    "best",
    "task",
    "language",
    "difference",
    "low",
    "high",
    "p",
    "p_pairs",
    "is_open",
    "is_best",
)


class ParameterAxis(NamedTuple):
    """A parameter that varies, or several that only change together."""

    title: str
    """Its plain name."""

    ticks: tuple[str, ...]
    """Its values as text, in the order of the numbers, or of the study where it has no numbers."""

    numbers: tuple[float, ...] | None
    """The values (of several parameters those of the first); None for what is no number."""


class ParameterGrid(NamedTuple):
    """The merges of a study by their parameters."""

    axes: tuple[ParameterAxis, ...]
    """One to `MOST_AXES`, in the order of the study."""

    places: Mapping[tuple[int, ...], str]
    """Number of a value on each axis -> label of the model there; no model, no place."""


def find_grid(study: Study, models: Sequence[StudyModel]) -> ParameterGrid | None:
    """Return the grid of a study's merges; None where they are none.

    They are a grid where one to three axes vary and at least half of the combinations are models:
    of one axis three values or more, which are numbers. Settings with the same weights are at
    several places.
    """
    points = [
        (setting, model.label)
        for model in models
        if model.kind == "recipe"
        for setting in (model.setting, *model.same)
    ]
    groups = _groups([setting for setting, _ in points])
    if not 0 < len(groups) <= MOST_AXES:
        return None
    axes, columns = zip(*(_axis(study, names, points) for names in groups), strict=True)
    places = {
        place: label for place, (_, label) in zip(zip(*columns, strict=True), points, strict=True)
    }
    if len(axes) == 1:
        is_shown = axes[0].numbers is not None and len(places) > 2
    else:
        sizes = [len(axis.ticks) for axis in axes]
        is_shown = 2 * len(places) >= sizes[0] * sizes[1] * (sizes[2] if len(sizes) > 2 else 1)
    return ParameterGrid(axes, places) if is_shown else None


def differences_to_best(
    results: Results, shown: ShownTasks, scores: pd.DataFrame, grid: ParameterGrid
) -> pd.DataFrame:
    """Return how far each model of a grid is from the best, on every task and language.

    Columns: ``model``, ``best`` (label of the model with the best score), ``task``, ``language``,
    ``difference`` (model minus best, on the scale of the score), ``low``, ``high``, ``p``,
    ``p_pairs`` (corrected by Bonferroni's method for all pairs of models of the grid on that task),
    ``is_open``: whether the data cannot tell it from the best, and ``is_best``: whether it has the
    best score, alone or with others; none is best where all of several score the same.

    The best is chosen by its score, so which pairs are tested depends on the data. As p is
    corrected for every pair that could have been, all models that are not open are truly worse than
    the one with the best score in at least 95 % of studies (the level of the intervals), and the
    truly best model is open in as many.

    Args:
        results: of a run.
        shown: its tasks.
        scores: from `score_frame`.
        grid: of the run's models.
    """
    study = results.study
    labels = dict.fromkeys(grid.places.values())
    part = scores[scores["model"].isin(list(labels)) & scores["value"].notna()]
    rows: list[dict[str, Any]] = []
    for (task, language), panel in part.groupby(["task", "language"], sort=False):
        sign = 1 if panel["higher_is_better"].iloc[0] else -1
        best = panel.loc[(sign * panel["value"]).idxmax()]
        # Of equal scores, means over other cells may differ in the last digit.
        is_tied = np.isclose(panel["value"], best["value"], rtol=1e-9, atol=0)
        tied = {*panel[is_tied]["model"]}
        best_models = tied if len(tied) < len(panel) or len(panel) == 1 else set()
        matrix = shown.matrices[str(task)]
        planned = planned_cells(results.scores, str(language))
        level, margin = study.evaluate.level, study.report.margin / 100
        panel_rows: list[dict[str, Any]] = []
        for model in panel["model"]:
            numbers = None
            if model != best["model"]:
                first, second = (
                    rows_of(matrix, [label], str(language)) for label in (model, best["model"])
                )
                numbers = compare_sides(first, second, level, margin, planned=planned)
            place = {"model": model, "best": best["model"], "task": task, "language": language}
            panel_rows.append({**place, **({} if numbers is None else vars(numbers))})
        tested = [row for row in panel_rows if row.get("p") is not None]
        for row in tested:
            row["p_pairs"] = min(1.0, row["p"] * math.comb(len(panel), 2))
        for row in panel_rows:
            row["is_open"] = bool(tested) and row.get("p_pairs", 1.0) >= alpha_of(level)
            row["is_best"] = row["model"] in best_models
        rows += panel_rows
    return pd.DataFrame(rows, columns=list(_BEST_COLUMNS))


def _groups(settings: Sequence[Mapping[str, Value]]) -> list[list[str]]:
    """Return the names that vary, together those of which each value goes with one of the other."""
    keys = {
        name: [setting_key(setting.get(name)) for setting in settings]
        for name in dict.fromkeys(itertools.chain.from_iterable(settings))
    }
    groups: list[list[str]] = []
    for name, column in keys.items():
        if len({*column}) < 2:
            continue
        for group in groups:
            first = keys[group[0]]
            if len({*zip(first, column, strict=True)}) == len({*first}) == len({*column}):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _axis(
    study: Study, names: Sequence[str], points: Sequence[tuple[Mapping[str, Value], str]]
) -> tuple[ParameterAxis, list[int]]:
    """Return an axis, and the number of its value for each point."""
    values = [tuple(setting.get(name) for name in names) for setting, _ in points]
    unique = {setting_key(value): value for value in values}
    is_numeric = all(type(part) in (int, float) for value in values for part in value)
    if is_numeric:
        unique = dict(sorted(unique.items(), key=lambda item: item[1]))
    axis = ParameterAxis(
        title=", ".join(_title(study, name) for name in names),
        ticks=tuple(", ".join(dict.fromkeys(map(_tick, value))) for value in unique.values()),
        numbers=tuple(_numbers(unique.values())) if is_numeric else None,
    )
    order = list(unique)
    return axis, [order.index(setting_key(value)) for value in values]


def _numbers(values: Any) -> Iterator[float]:
    for first, *_ in values:
        yield first


def _tick(value: Value | None) -> str:
    return _NOT_SET if value is None else describe_value(value)


def _title(study: Study, name: str) -> str:
    """Return a name of `vary` in words: ``bottom layers (b)``, ``weight of task``."""
    *above, last = name.split(".")
    text = last.replace("_", " ")
    if name.startswith(EXPERTS):
        return f"{text} expert" if last != "base" else text
    if last in LETTERS:
        return f"{text} ({LETTERS[last]})"
    models = (study.recipe or {}).get("models")
    if above[:1] == ["models"] and isinstance(models, list):
        return f"{text} of {models[int(above[1])].get('model', above[1])}"
    return text
