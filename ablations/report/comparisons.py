"""Comparisons of models: difference, interval, p and verdict of each.

A comparison is made once, for an `Analysis`, from which every sentence, table and figure takes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ablations.report.contrasts import Contrast, compared_languages, contrasts
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.observations import CELL, CELL_ROLES
from ablations.runs.results import Results
from ablations.runs.score_table import check_names
from ablations.statistics.holm import holm
from ablations.statistics.mcnemar import mcnemar_p, paired_interval, paired_p_outside
from ablations.statistics.means_and_p_values import (
    Estimate,
    alpha_of,
    estimate,
    estimate_over_clusters,
    least_variance,
)
from ablations.study.grouping import StudyModel
from ablations.study.schema import EXPERTS, Study
from ablations.study.wording import kind_text, merge_text, setting_key
from ablations.tasks.names import language_name, task_name

BETTER, WORSE, SAME, UNCLEAR = "better", "worse", "no relevant difference", "cannot tell"
"""Verdicts. ``no relevant difference``: both one-sided tests are inside the study's margin."""

ONE_MODEL, NO_RESULT = "same weights", "no result"
"""Texts in place of a verdict where nothing is to be tested, or could not be."""


@dataclass(frozen=True)
class ScoreDifference:
    """The difference of two sides, on the scale of the score; the p values are not corrected.

    Interval and p are None where both sides have the same weights, so nothing is to be tested; the
    interval alone where too few items are all the same.
    """

    difference: float
    items: int
    cells: int
    """Cells of both sides."""

    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_margin: float | None = None
    """Of the hypothesis that the difference is beyond the study's margin."""


@dataclass(frozen=True)
class TaskComparison:
    """Two models, or averages over settings or clusters, on one task: first minus second."""

    first: str
    second: str
    task: str
    metric: str
    filter: str
    language: str
    """Of the experts: a code, "all" of a mean over languages; empty where there are none."""

    higher_is_better: bool
    difference: float | None = None
    """On the scale of the score; None where it could not be computed."""

    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_margin: float | None = None
    """Of the hypothesis that the difference is beyond the study's margin."""

    p_holm: float | None = None
    p_margin_holm: float | None = None
    """Corrected for all primary comparisons; of these only."""

    verdict: str = ""
    family: str = ""
    """``primary``, or empty."""

    rival: str = ""
    """Of a primary comparison what its second side is to the first."""

    items: int | None = None
    cells: int | None = None
    """Cells of both sides."""

    clusters: int = 0
    """Languages or bases that the difference is averaged over; 0 for none."""

    def with_difference(self, difference: ScoreDifference, **fields: Any) -> TaskComparison:
        """Return the comparison with the numbers of a difference, and with other fields."""
        return dataclasses.replace(self, **vars(difference), **fields)


COLUMNS = tuple(field.name for field in dataclasses.fields(TaskComparison))
"""Columns of a frame of comparisons."""


def comparisons(
    results: Results, shown: ShownTasks, others: Sequence[Contrast] | None = None
) -> tuple[TaskComparison, ...]:
    """Return every comparison of a study, primary ones first.

    Args:
        results: of a run; its study names the primary comparisons.
        shown: its tasks.
        others: comparisons in place of the study's.

    A difference has a verdict at the level of the study's intervals: 0.05 for 95 %.

    Raises:
        InputError: for a task of the study's report that is not in the run.
    """
    study, models, scores = results.study, results.models, results.scores
    evaluated = list(dict.fromkeys(scores["task"]))
    check_names(study.report.primary.tasks, evaluated, "report.primary.tasks:")
    planned = {code: planned_cells(scores, code) for code in (*shown.languages, "")}
    rows: list[TaskComparison] = []
    for contrast in contrasts(study, models) if others is None else others:
        compared_models = {*contrast.first_models, *contrast.second_models}
        languages = set(scores[scores["model"].isin(compared_models)]["language"]) - {""}
        contrast_rows: list[TaskComparison] = []
        for code in compared_languages(shown.languages, languages):
            for task in shown.by_language[code]:
                is_primary = bool(contrast.rival) and task in shown.primary[code]
                difference = None
                if task in shown.matrices:
                    matrix = shown.matrices[task]
                    difference = _compare(contrast, matrix, code, study, models, planned[code])
                if difference is None and not is_primary:
                    continue
                row = TaskComparison(
                    first=contrast.first,
                    second=contrast.second,
                    task=task,
                    metric=shown.metrics["metric"].get(task, ""),
                    filter=shown.metrics["filter"].get(task, ""),
                    higher_is_better=bool(shown.metrics["higher_is_better"].get(task, True)),
                    language=code,
                    family="primary" if is_primary else "",
                    rival=contrast.rival if is_primary else "",
                )
                contrast_rows.append(row.with_difference(difference) if difference else row)
        rows += contrast_rows
        rows += _over_languages(contrast_rows, shown.primary, study)
    rows += _over_bases(rows, study, models)
    compared = with_verdicts(rows, alpha_of(study.evaluate.level))
    return tuple(sorted(compared, key=lambda row: not row.family))


def rows_of(matrix: pd.DataFrame, models: Sequence[str], code: str) -> pd.DataFrame:
    """Return the cells of models in a language: those of that language and those of none."""
    rows = matrix[matrix.index.isin(models, level="model")]
    return rows[rows.index.isin((code, ""), level="language")] if code else rows


def planned_cells(scores: pd.DataFrame, code: str) -> pd.DataFrame:
    """Return all cells that a study plans in a language, finished or not: the columns of `CELL`.

    Args:
        scores: from `table_of_scores`.
        code: the language; empty for all.
    """
    rows = scores[scores["language"].isin((code, ""))] if code else scores
    return rows[[*CELL]].drop_duplicates()


def estimate_of(rows: pd.DataFrame) -> Estimate | None:
    """Return the mean score over cells and the items that all have; None without such an item."""
    rows = rows.dropna(axis="columns")
    if rows.empty:
        return None
    axes = [rows.index.get_level_values(role).tolist() for role in CELL_ROLES]
    return estimate(rows.to_numpy(), np.full(len(rows), 1 / len(rows)), axes)


def compare_sides(
    first: pd.DataFrame,
    second: pd.DataFrame,
    level: float,
    margin: float,
    strata: Mapping[str, str] | None = None,
    planned: pd.DataFrame | None = None,
) -> ScoreDifference | None:
    """Return the difference of two sides; None where no cell or item is on both.

    Cells are matched by the roles in which both sides have the same experts, finished or planned,
    and a cell without a counterpart is left out: in such a role the difference is of the same
    experts, each with the same weight on both sides. A role whose experts are not the same matches
    nothing, so the difference is that of the two mean scores. Two single cells with right and wrong
    answers have the exact test of McNemar and Tango's interval; all others Student's t.

    Args:
        first: values of its cells, from `rows_of`.
        second: those of the other side.
        level: of the interval, in (0, 1).
        margin: largest difference that is not relevant, on the scale of the score.
        strata: model -> its stratum; only models of one stratum are matched.
        planned: from `planned_cells`; None where all cells are there.
    """
    first_cells, second_cells = (side.index.to_frame(index=False) for side in (first, second))
    first_weights, second_weights = _matched_weights(
        first_cells, second_cells, strata or {}, planned
    )
    rows = pd.concat([first.iloc[first_weights.index], second.iloc[second_weights.index]])
    rows = rows.dropna(axis="columns")
    if rows.empty:
        return None
    values, items = rows.to_numpy(), rows.shape[1]
    weights = np.array([*first_weights, *-second_weights])
    by_content = pd.Series(weights, rows.index.get_level_values("weights")).groupby(level=0).sum()
    if np.allclose(by_content, 0):
        return ScoreDifference(0.0, items, len(rows))
    is_binary = bool(np.isin(values, (0.0, 1.0)).all())
    if len(rows) == 2 and is_binary:
        first_only = int((values[0] > values[1]).sum())
        second_only = int((values[0] < values[1]).sum())
        low, high = paired_interval(first_only, second_only, items, level)
        return ScoreDifference(
            difference=(first_only - second_only) / items,
            items=items,
            cells=len(rows),
            low=low,
            high=high,
            p=mcnemar_p(first_only, second_only),
            p_margin=paired_p_outside(first_only, second_only, items, margin),
        )
    axes = [rows.index.get_level_values(role).tolist() for role in CELL_ROLES]
    least = least_variance(items) if is_binary else 0.0
    return _tested(estimate(values, weights, axes, least), items, len(rows), level, margin)


def _matched_weights(
    first: pd.DataFrame,
    second: pd.DataFrame,
    strata: Mapping[str, str],
    planned: pd.DataFrame | None,
) -> tuple[pd.Series, pd.Series]:
    """Return number of a cell -> its weight, for each side; both empty where nothing matches.

    Every group of matched cells has the same weight, on each side even over its cells there.
    """
    sides = [
        side.assign(stratum=side["model"].map(strata) if strata else "") for side in (first, second)
    ]
    shared = {*sides[0]["stratum"]} & {*sides[1]["stratum"]}
    sides = [side[side["stratum"].isin(shared)] for side in sides]
    plans = sides
    if planned is not None:
        plans = [planned[planned["model"].isin(side["model"])] for side in sides]
    names = ["stratum"]
    for role in CELL_ROLES:
        experts, planned_experts = ([{*side[role]} for side in each] for each in (sides, plans))
        # A merge that takes nothing of an expert has none in that role, whatever was planned.
        is_planned = planned_experts[0] == planned_experts[1] and "" not in experts[0] | experts[1]
        if experts[0] == experts[1] or is_planned:
            names.append(role)
    groups = [pd.MultiIndex.from_frame(side[names]) for side in sides]
    common = groups[0].intersection(groups[1])
    weights = []
    for side, group in zip(sides, groups, strict=True):
        matched = side[group.isin(common)]
        sizes = matched.groupby(names)["model"].transform("size")
        weights.append(1 / sizes / len(common))
    return weights[0], weights[1]


def partial_comparisons(compared: Sequence[TaskComparison], shown: ShownTasks) -> Iterator[str]:
    """Yield which comparisons leave out finished cells of their models.

    Args:
        compared: from `comparisons`.
        shown: the tasks that they are of.
    """
    for row in compared:
        if row.cells is None or row.clusters:
            continue
        cells = len(rows_of(shown.matrices[row.task], [row.first, row.second], row.language))
        if row.cells < cells:
            yield (
                f"{row.task}: {row.first} and {row.second} are compared over "
                f"{row.cells} of their {cells} cells, those with the same experts on both "
                "sides; their scores are over all."
            )


def with_verdicts(rows: Sequence[TaskComparison], alpha: float = 0.05) -> list[TaskComparison]:
    """Return comparisons with corrected p-values and verdicts, which need a p below `alpha`.

    Differences and margins are two families: a difference is tested against zero and against the
    margin, each corrected for all primary comparisons.
    """
    numbered = [(at, row) for at, row in enumerate(rows) if row.family == "primary"]
    p = _corrected({at: row.p for at, row in numbered if row.p is not None})
    p_margin = _corrected({at: row.p_margin for at, row in numbered if row.p_margin is not None})
    judged = []
    for at, row in enumerate(rows):
        corrected = dataclasses.replace(row, p_holm=p.get(at), p_margin_holm=p_margin.get(at))
        judged.append(dataclasses.replace(corrected, verdict=_verdict(corrected, alpha)))
    return judged


def _corrected(p_values: Mapping[int, float]) -> dict[int, float]:
    return dict(zip(p_values, holm([*p_values.values()]), strict=True))


def _compare(
    contrast: Contrast,
    matrix: pd.DataFrame,
    code: str,
    study: Study,
    models: Sequence[StudyModel],
    planned: pd.DataFrame,
) -> ScoreDifference | None:
    strata = {}
    for model in models if contrast.names else ():
        shared = {
            name: value for name, value in model.setting.items() if name not in contrast.names
        }
        strata[model.label] = setting_key(shared)
    return compare_sides(
        rows_of(matrix, contrast.first_models, code),
        rows_of(matrix, contrast.second_models, code),
        study.evaluate.level,
        study.report.margin / 100,
        strata,
        planned,
    )


def _over_languages(
    rows: Sequence[TaskComparison], primary: Mapping[str, Sequence[str]], study: Study
) -> Iterator[TaskComparison]:
    """Yield the mean of a contrast over languages, each by its first primary task.

    These must be one benchmark by their names, and have one metric.
    """
    by_language = {
        row.language: row
        for row in rows
        if row.task in primary[row.language][:1] and row.difference is not None
    }
    firsts = [*by_language.values()]
    kinds = {(row.metric, _without_language(row)) for row in firsts}
    if len(firsts) > 1 and len(kinds) == 1 and any(row.p is not None for row in firsts):
        task = f"mean of {len(firsts)} languages"
        yield _clustered([*by_language.items()], study, task=task, language="all")


def _without_language(row: TaskComparison) -> str:
    """Return a task's name in words but for the language of its comparison."""
    return task_name(row.task).replace(language_name(row.language), "")


def _over_bases(
    rows: Sequence[TaskComparison], study: Study, models: Sequence[StudyModel]
) -> Iterator[TaskComparison]:
    """Yield the mean of comparisons that differ in their experts only, over the bases."""
    by_label = {model.label: model for model in models}
    groups: dict[tuple[str, ...], list[tuple[str, TaskComparison]]] = {}
    for row in rows:
        pair = [by_label[side] for side in (row.first, row.second) if side in by_label]
        if row.difference is None or row.clusters or len(pair) < 2:
            continue
        first, second = (_without_experts(model, study) for model in pair)
        bases = {str(model.pools["base"]) for model in pair if "base" in model.pools}
        if len(bases) == 1 and "base" in pair[0].pools and first != second:
            group = groups.setdefault((first, second, row.task, row.language), [])
            group.append((bases.pop(), row))
    for (first, second, *_), group in groups.items():
        number = len({base for base, _ in group})
        if number > 1 and any(row.p is not None for _, row in group):
            yield _clustered(group, study, first=first, second=f"{second}, mean of {number} bases")


def _without_experts(model: StudyModel, study: Study) -> str:
    if model.kind != "recipe":
        return kind_text(model.kind)
    shared = {name: value for name, value in model.setting.items() if not name.startswith(EXPERTS)}
    return merge_text(study, shared)


def _clustered(
    rows: Sequence[tuple[str, TaskComparison]], study: Study, **labels: str
) -> TaskComparison:
    """Return the mean of comparisons over their clusters, under other labels.

    Each of `rows` has the name of its cluster.
    """
    numbers = [(cluster, row.difference) for cluster, row in rows]
    means = pd.DataFrame(numbers).groupby(0)[1].mean().tolist()
    difference = _tested(
        estimate_over_clusters(means),
        sum(row.items or 0 for _, row in rows),
        sum(row.cells or 0 for _, row in rows),
        study.evaluate.level,
        study.report.margin / 100,
    )
    first = rows[0][1]
    return first.with_difference(difference, family="", rival="", clusters=len(means), **labels)


def _tested(
    estimated: Estimate, items: int, cells: int, level: float, margin: float
) -> ScoreDifference:
    """Return a difference of scores, which is from -1 to 1 as they are from 0 to 1.

    An interval that ends there says that the data set no limit on that side.
    """
    half = estimated.half_width(level)
    has_interval = not math.isnan(half)
    return ScoreDifference(
        difference=estimated.mean,
        items=items,
        cells=cells,
        low=max(estimated.mean - half, -1.0) if has_interval else None,
        high=min(estimated.mean + half, 1.0) if has_interval else None,
        p=estimated.p_value(),
        p_margin=estimated.p_outside(margin),
    )


def _verdict(row: TaskComparison, alpha: float) -> str:
    if row.p is None or row.difference is None:
        return NO_RESULT if row.difference is None else ONE_MODEL
    is_primary = row.family == "primary"
    p, p_margin = (row.p_holm, row.p_margin_holm) if is_primary else (row.p, row.p_margin)
    if p is not None and p < alpha:
        return BETTER if (row.difference > 0) == row.higher_is_better else WORSE
    return SAME if p_margin is not None and p_margin < alpha else UNCLEAR
