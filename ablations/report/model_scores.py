"""The score of every model on every task: the mean over its cells, with an interval."""

from __future__ import annotations

import pandas as pd

from ablations.report.comparisons import estimate_of, pairs_above, rows_of
from ablations.report.contrasts import EXPERT_KINDS
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.results import Results
from ablations.statistics.intervals import score_interval


def score_frame(results: Results, shown: ShownTasks) -> pd.DataFrame:
    """Return a row for every model, task and language: its mean score and the range over cells.

    Columns: ``model``, ``kind``, ``task``, ``metric``, ``language`` (of the experts), ``value``,
    ``low``, ``high`` (of the interval over experts, seeds and items; of a single cell the record's
    own, as everywhere), ``min`` and ``max`` over cells, ``cells``, ``cells_expected``
    (of the study), ``trainings`` (most experts of a role; 0 for the base alone), ``is_share``,
    ``is_primary``, ``floor``, ``floor_name``, ``is_below`` (its floor), ``pairs`` and ``above``
    (pairs better than both of their own experts; empty for what has none).
    """
    study, models, scores = results.study, results.models, results.scores
    rows = []
    language_tasks = [(code, task) for code in shown.languages for task in shown.by_language[code]]
    for code, task in language_tasks:
        if task not in shown.matrices:
            continue
        score, matrix = shown.scores.loc[task], shown.matrices[task]
        for model in models:
            of_model = scores[(scores["model"] == model.label) & (scores["task"] == task)]
            if code:
                of_model = of_model[of_model["language"].isin((code, ""))]
            if of_model.empty:
                continue
            done = of_model[
                (of_model["metric"] == score["metric"]) & (of_model["filter"] == score["filter"])
            ]
            row = {
                "model": model.label,
                "kind": model.kind,
                "language": code,
                **score,
                "cells_expected": of_model["cell"].nunique(),
                "cells": done["cell"].nunique(),
                "min": done["value"].min(),
                "max": done["value"].max(),
                "trainings": of_model[[*EXPERT_KINDS]].replace("", None).nunique().max(),
                "value": done["value"].mean(),
                "is_primary": task in shown.primary[code],
            }
            cells = rows_of(matrix, [model.label], code)
            estimate = estimate_of(cells)
            is_whole = {*done["weights"]} <= {*cells.index.get_level_values("weights")}
            if estimate is not None and is_whole:  # never of some cells only
                row["value"] = estimate.mean
                row["low"], row["high"] = score_interval(estimate, study.evaluate.level)
            if len(cells) == 1 and is_whole:  # a score of one record, which has its interval
                row["low"], row["high"] = done.iloc[0]["low"], done.iloc[0]["high"]
            if model.kind == "recipe":
                higher = bool(score["higher_is_better"])
                row |= pairs_above(matrix, model, models, code, higher=higher) or {}
            rows.append(row)
    numbers = ("value", "low", "high", "min", "max", "floor", "pairs", "above")
    frame = pd.DataFrame(rows)
    columns = list(dict.fromkeys([*frame.columns, *numbers]))
    frame = frame.reindex(columns=columns).astype(dict.fromkeys(numbers, "float64"))
    sign = 2 * frame["higher_is_better"].astype(float) - 1
    frame["is_below"] = sign * (frame["value"] - frame["floor"]) < 0
    return frame.sort_values("is_primary", ascending=False, kind="stable", ignore_index=True)
