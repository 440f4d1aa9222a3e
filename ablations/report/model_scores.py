"""The score of every model on every task: the mean over its cells, with an interval."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ablations.report.comparisons import estimate_of, rows_of
from ablations.report.contrasts import EXPERT_KINDS
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.results import Results
from ablations.statistics.intervals import score_interval
from ablations.study.grouping import StudyModel


@dataclass(frozen=True)
class ModelScore:
    """The mean score of a model on a task, and the range over its cells."""

    model: str
    kind: str
    language: str
    """Of the experts: a code; empty where there are none."""

    task: str
    metric: str
    filter: str
    higher_is_better: bool
    is_share: bool
    floor: float | None
    """What a rule that does not read would score; None where the task has none."""

    floor_name: str
    cells_expected: int
    """Cells of the model in the study."""

    cells: int
    """Cells that are finished."""

    min: float | None
    max: float | None
    trainings: int
    """Most experts of a role; 0 for the base alone."""

    value: float | None
    """None where no cell is finished."""

    is_primary: bool
    low: float | None = None
    """Of the interval over experts, seeds and items; of a single cell the record's own."""

    high: float | None = None
    pairs: int | None = None
    above: int | None = None
    """Pairs that are better than both of their own experts; None for what has no pairs."""

    is_below: bool = False
    """Whether `value` is below `floor`."""


COLUMNS = tuple(field.name for field in dataclasses.fields(ModelScore))
"""Columns of a frame of model scores."""


class PairsAbove(NamedTuple):
    """How many pairs of experts of a merge are better than both of their experts."""

    pairs: int
    above: int
    min: float
    """Of the scores of the pairs."""

    max: float


def model_scores(results: Results, shown: ShownTasks) -> tuple[ModelScore, ...]:
    """Return the score of every model on every task and language, primary tasks first."""
    scores: list[ModelScore] = []
    for code in shown.languages:
        for task in shown.by_language[code]:
            if task in shown.matrices:
                scores += _scores_of_task(results, shown, task, code)
    return tuple(sorted(scores, key=lambda score: not score.is_primary))


def _scores_of_task(
    results: Results, shown: ShownTasks, task: str, code: str
) -> Iterator[ModelScore]:
    for model in results.models:
        rows = results.scores
        rows = rows[(rows["model"] == model.label) & (rows["task"] == task)]
        if code:
            rows = rows[rows["language"].isin((code, ""))]
        if not rows.empty:
            yield _score(results, shown, model, code, rows)


def _score(
    results: Results, shown: ShownTasks, model: StudyModel, code: str, rows: pd.DataFrame
) -> ModelScore:
    """Return the score of a model on the task of its `rows` of `Results.scores`."""
    task = rows["task"].iloc[0]
    score, matrix = shown.metrics.loc[task], shown.matrices[task]
    done = rows[(rows["metric"] == score["metric"]) & (rows["filter"] == score["filter"])]
    value, low, high = _number(done["value"].mean()), None, None
    cells = rows_of(matrix, [model.label], code)
    estimate = estimate_of(cells)
    is_whole = {*done["weights"]} <= {*cells.index.get_level_values("weights")}
    if estimate is not None and is_whole:  # never of some cells only
        value = estimate.mean
        low, high = score_interval(estimate, results.study.evaluate.level)
    if len(cells) == 1 and is_whole:  # a score of one record, which has its interval
        low, high = done.iloc[0]["low"], done.iloc[0]["high"]
    least, most = _number(done["value"].min()), _number(done["value"].max())
    higher, floor = bool(score["higher_is_better"]), _number(score["floor"])
    above = None
    if model.kind == "recipe":
        above = pairs_above(matrix, model, results.models, code, higher=higher)
    if above is not None:
        least, most = above.min, above.max
    is_below = False
    if value is not None and floor is not None:
        is_below = value < floor if higher else value > floor
    return ModelScore(
        model=model.label,
        kind=model.kind,
        language=code,
        task=task,
        metric=score["metric"],
        filter=score["filter"],
        higher_is_better=higher,
        is_share=bool(score["is_share"]),
        floor=floor,
        floor_name=score["floor_name"],
        cells_expected=rows["cell"].nunique(),
        cells=done["cell"].nunique(),
        min=least,
        max=most,
        trainings=int(rows[[*EXPERT_KINDS]].replace("", None).nunique().max()),
        value=value,
        is_primary=task in shown.primary[code],
        low=_number(low),
        high=_number(high),
        pairs=None if above is None else above.pairs,
        above=None if above is None else above.above,
        is_below=is_below,
    )


def pairs_above(
    matrix: pd.DataFrame,
    model: StudyModel,
    models: Sequence[StudyModel],
    code: str,
    *,
    higher: bool = True,
) -> PairsAbove | None:
    """Return how many pairs of a merge beat both of their experts, and the range of scores.

    None for a merge of fewer than two pairs, or without both experts among the baselines.
    """

    def means(labels: Sequence[str], *experts: str) -> pd.Series:
        """Return the mean scores of models by their experts, more being better."""
        scores = (1 if higher else -1) * rows_of(matrix, labels, code).mean(axis="columns")
        return scores.groupby(level=list(experts)).mean()

    pair_scores = means([model.label], *EXPERT_KINDS)
    expert_scores = []
    for kind in EXPERT_KINDS:
        experts = pair_scores.index.get_level_values(kind)
        baselines = [model.label for model in models if model.kind == kind]
        expert_scores.append(experts.map(means(baselines, kind)).to_numpy(dtype="float64"))
    if len(pair_scores) < 2 or np.isnan(expert_scores).any():
        return None
    above = int((pair_scores.to_numpy() > np.max(expert_scores, axis=0)).sum())
    low, high = sorted((abs(pair_scores.min()), abs(pair_scores.max())))
    return PairsAbove(len(pair_scores), above, float(low), float(high))


def _number(value: float | None) -> float | None:
    """Return a number of a frame; None for its gaps."""
    return None if value is None or math.isnan(value) else float(value)
