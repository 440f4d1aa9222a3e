"""Comparisons of models: one row each, with difference, interval, p and verdict.

A comparison is made once. Every sentence, table and figure takes it from the frame that
`comparisons` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ablations.report.contrasts import EXPERT_KINDS, Contrast, contrasts
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.models import StudyModel
from ablations.runs.observations import ROLES, SCORE
from ablations.runs.results import Results
from ablations.runs.score_table import check_names
from ablations.statistics.holm import holm
from ablations.statistics.mcnemar import mcnemar_p, paired_interval, paired_p_outside
from ablations.statistics.means_and_p_values import Estimate, estimate, estimate_over_clusters
from ablations.study.schema import EXPERTS, Study
from ablations.study.wording import kind_text, merge_text, setting_key

ALPHA = 0.05
"""A p below it is called evidence: corrected for primary comparisons, as it is for others."""

BETTER, WORSE, SAME, UNCLEAR = "better", "worse", "no relevant difference", "cannot tell"
"""Verdicts. ``no relevant difference``: both one-sided tests are inside the study's margin."""

ONE_MODEL, NO_RESULT = "same weights", "no result"
"""Texts in place of a verdict where nothing is to be tested, or could not be."""

COLUMNS = (
    "first",
    "second",
    *SCORE,
    "language",
    "higher_is_better",
    "difference",
    "low",
    "high",
    "p",
    "p_margin",
    "p_holm",
    "p_margin_holm",
    "verdict",
    "family",
    "rival",
    "items",
    "cells",
    "clusters",
)


def comparisons(
    results: Results, shown: ShownTasks, others: Sequence[Contrast] | None = None
) -> pd.DataFrame:
    """Return every comparison of a study, primary ones first.

    Columns: ``first``, ``second``, ``task``, ``metric``, ``filter``, ``language``, ``difference``
    (first minus second, on the scale of the score), ``low``, ``high``, ``p``, ``p_margin`` (of the
    hypothesis that the difference is beyond the study's margin), ``p_holm`` and ``p_margin_holm``
    (corrected for all primary comparisons), ``verdict``, ``family`` (``primary`` or empty),
    ``rival``, ``items``, ``cells`` (of both sides), ``clusters`` (languages or bases that the
    difference is averaged over; 0 for none).

    Args:
        results: of a run; its study names the primary comparisons.
        shown: its tasks.
        others: comparisons in place of the study's.

    Raises:
        InputError: for a task or metric of the study's report that is not in the run.
    """
    study, models, scores = results.study, results.models, results.scores
    evaluated = list(dict.fromkeys(scores["task"]))
    check_names(study.report.primary.tasks, evaluated, "report.primary.tasks:")
    if study.report.metric is not None and (scores["state"] == "done").all():
        check_names([study.report.metric], sorted({*scores["metric"]}), "report.metric:")
    rows: list[dict[str, Any]] = []
    for contrast in contrasts(study, models) if others is None else others:
        compared_models = {*contrast.first_models, *contrast.second_models}
        languages = set(scores[scores["model"].isin(compared_models)]["language"]) - {""}
        contrast_rows: list[dict[str, Any]] = []
        for code in [code for code in shown.languages if code in languages] or [""]:
            for task in shown.by_language[code]:
                is_primary = bool(contrast.rival) and task in shown.primary[code]
                numbers = None
                if task in shown.matrices:
                    numbers = _compare(contrast, shown.matrices[task], code, study, models)
                if numbers is None and not is_primary:
                    continue
                contrast_rows.append(
                    {
                        "first": contrast.first,
                        "second": contrast.second,
                        "task": task,
                        "metric": shown.scores["metric"].get(task, ""),
                        "filter": shown.scores["filter"].get(task, ""),
                        "higher_is_better": bool(shown.scores["higher_is_better"].get(task, True)),
                        "language": code,
                        "clusters": 0,
                        "family": "primary" if is_primary else "",
                        "rival": contrast.rival if is_primary else "",
                        **(numbers or {}),
                    }
                )
        rows += contrast_rows
        rows += _over_languages(contrast_rows, shown.primary, study)
    rows += _over_bases(rows, study, models)
    frame = with_verdicts(pd.DataFrame(rows, columns=list(COLUMNS)))
    return frame.sort_values("family", ascending=False, kind="stable", ignore_index=True)


def rows_of(matrix: pd.DataFrame, models: Sequence[str], code: str) -> pd.DataFrame:
    """Return the cells of models in a language: those of that language and those of none."""
    rows = matrix[matrix.index.isin(models, level="model")]
    return rows[rows.index.isin((code, ""), level="language")] if code else rows


def estimate_of(rows: pd.DataFrame) -> Estimate | None:
    """Return the mean score over cells and the items that all have; None without such an item."""
    rows = rows.dropna(axis="columns")
    if rows.empty:
        return None
    axes = [rows.index.get_level_values(role).tolist() for role in ROLES]
    return estimate(rows.to_numpy(), np.full(len(rows), 1 / len(rows)), axes)


def compare_sides(
    first: pd.DataFrame,
    second: pd.DataFrame,
    level: float,
    margin: float,
    strata: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return the numbers of a comparison; None where no cell or item is on both sides.

    Cells are matched by the experts that both sides have. Two single cells with right and wrong
    answers have the exact test of McNemar and Tango's interval; all others Student's t.

    Args:
        first: values of its cells, from `rows_of`.
        second: those of the other side.
        level: of the interval, in (0, 1).
        margin: largest difference that is not relevant, on the scale of the score.
        strata: model -> its stratum; only models of one stratum are matched.
    """
    first_cells, second_cells = (side.index.to_frame(index=False) for side in (first, second))
    for cells in (first_cells, second_cells):
        cells["stratum"] = cells["model"].map(strata) if strata else ""
    shared_roles = [role for role in ROLES if {*first_cells[role]} & {*second_cells[role]} - {""}]
    pairs = first_cells.reset_index().merge(
        second_cells.reset_index(), on=["stratum", *shared_roles], suffixes=("_first", "_second")
    )
    if pairs.empty:
        return None
    sizes = pairs.groupby("index_first")["index_second"].transform("size")
    pairs["weight"] = 1 / sizes / pairs["index_first"].nunique()
    first_weights = pairs.groupby("index_first")["weight"].sum()
    second_weights = pairs.groupby("index_second")["weight"].sum()
    rows = pd.concat([first.iloc[first_weights.index], second.iloc[second_weights.index]])
    rows = rows.dropna(axis="columns")
    if rows.empty:
        return None
    values, items = rows.to_numpy(), rows.shape[1]
    counts = {"items": items, "cells": len(rows)}
    if (pairs["weights_first"] == pairs["weights_second"]).all():
        return {"difference": 0.0, "verdict": ONE_MODEL, **counts}
    is_binary = bool(np.isin(values, (0.0, 1.0)).all())
    if len(rows) == 2 and is_binary:
        first_only = int((values[0] > values[1]).sum())
        second_only = int((values[0] < values[1]).sum())
        low, high = paired_interval(first_only, second_only, items, level)
        return {
            "difference": (first_only - second_only) / items,
            "low": low,
            "high": high,
            "p": mcnemar_p(first_only, second_only),
            "p_margin": paired_p_outside(first_only, second_only, items, margin),
            **counts,
        }
    axes = [rows.index.get_level_values(role).tolist() for role in ROLES]
    least = 1 / (items + 2) ** 2 / len(first_weights) if is_binary else 0.0
    weights = np.array([*first_weights, *-second_weights])
    return {**_tested(estimate(values, weights, axes, least), level, margin), **counts}


def with_verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return comparisons with corrected p-values and verdicts.

    Differences and margins are two families: a difference is tested against zero and against the
    margin, each corrected for all primary comparisons.
    """
    frame = frame.copy()
    tested = (frame["family"] == "primary") & frame["p"].notna()
    for name in ("p", "p_margin"):
        frame[f"{name}_holm"] = np.nan
        frame.loc[tested, f"{name}_holm"] = holm(frame.loc[tested, name].astype(float).tolist())
    frame["verdict"] = [_verdict(row) for row in frame.to_dict("records")]
    return frame


def pairs_above(
    matrix: pd.DataFrame,
    model: StudyModel,
    models: Sequence[StudyModel],
    code: str,
    *,
    higher: bool = True,
) -> dict[str, Any] | None:
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
    return {"pairs": len(pair_scores), "above": above, "min": low, "max": high}


def _compare(
    contrast: Contrast, matrix: pd.DataFrame, code: str, study: Study, models: Sequence[StudyModel]
) -> dict[str, Any] | None:
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
    )


def _over_languages(
    rows: Sequence[dict[str, Any]], primary: Mapping[str, Sequence[str]], study: Study
) -> Iterator[dict[str, Any]]:
    """Yield the mean of a contrast over languages, each by its first primary task."""
    by_language: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["task"] in primary[row["language"]] and "difference" in row:
            by_language.setdefault(row["language"], {**row, "cluster": row["language"]})
    is_one_metric = len({row["metric"] for row in by_language.values()}) == 1
    if len(by_language) > 1 and is_one_metric and any("p" in row for row in by_language.values()):
        task = f"mean of {len(by_language)} languages"
        yield _clustered([*by_language.values()], study, task=task, language="all")


def _over_bases(
    rows: Sequence[dict[str, Any]], study: Study, models: Sequence[StudyModel]
) -> Iterator[dict[str, Any]]:
    """Yield the mean of comparisons that differ in their experts only, over the bases."""
    by_label = {model.label: model for model in models}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        pair = [by_label[row[side]] for side in ("first", "second") if row[side] in by_label]
        if "difference" not in row or row["clusters"] or len(pair) < 2:
            continue
        first, second = (_without_experts(model, study) for model in pair)
        bases = {str(model.pools["base"]) for model in pair if "base" in model.pools}
        if len(bases) == 1 and "base" in pair[0].pools and first != second:
            group = groups.setdefault((first, second, row["task"], row["language"]), [])
            group.append({**row, "cluster": bases.pop()})
    for (first, second, *_), group in groups.items():
        number = len({row["cluster"] for row in group})
        if number > 1 and any("p" in row for row in group):
            yield _clustered(group, study, first=first, second=f"{second}, mean of {number} bases")


def _without_experts(model: StudyModel, study: Study) -> str:
    if model.kind != "recipe":
        return kind_text(model.kind)
    shared = {name: value for name, value in model.setting.items() if not name.startswith(EXPERTS)}
    return merge_text(study, shared)


def _clustered(rows: Sequence[dict[str, Any]], study: Study, **labels: str) -> dict[str, Any]:
    """Return the mean of comparisons over their clusters, under other labels."""
    means = pd.DataFrame(rows).groupby("cluster")["difference"].mean().tolist()
    estimated = estimate_over_clusters(means)
    return {
        **rows[0],
        "family": "",
        "rival": "",
        "clusters": len(means),
        **_tested(estimated, study.evaluate.level, study.report.margin / 100),
        "items": sum(row["items"] for row in rows),
        "cells": sum(row["cells"] for row in rows),
        **labels,
    }


def _tested(estimated: Estimate, level: float, margin: float) -> dict[str, float]:
    half = estimated.half_width(level)
    return {
        "difference": estimated.mean,
        "low": estimated.mean - half,
        "high": estimated.mean + half,
        "p": estimated.p_value(),
        "p_margin": estimated.p_outside(margin),
    }


def _verdict(row: Mapping[str, Any]) -> str:
    if pd.isna(row["p"]):
        return NO_RESULT if pd.isna(row["difference"]) else ONE_MODEL
    corrected = "_holm" if row["family"] == "primary" else ""
    if row[f"p{corrected}"] < ALPHA:
        return BETTER if (row["difference"] > 0) == row["higher_is_better"] else WORSE
    return SAME if row[f"p_margin{corrected}"] < ALPHA else UNCLEAR
