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
from ablations.statistics.means_and_p_values import (
    Estimate,
    alpha_of,
    estimate,
    estimate_over_clusters,
)
from ablations.study.schema import EXPERTS, Study
from ablations.study.wording import kind_text, merge_text, setting_key

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

    A difference has a verdict at the level of the study's intervals: 0.05 for 95 %.

    Raises:
        InputError: for a task of the study's report that is not in the run.
    """
    study, models, scores = results.study, results.models, results.scores
    evaluated = list(dict.fromkeys(scores["task"]))
    check_names(study.report.primary.tasks, evaluated, "report.primary.tasks:")
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
    alpha = alpha_of(study.evaluate.level)
    frame = with_verdicts(pd.DataFrame(rows, columns=list(COLUMNS)), alpha)
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

    Cells are matched by the roles in which both sides have the same experts, and a cell without a
    counterpart is left out: in such a role the difference is of the same experts, each with the
    same weight on both sides. A role whose experts are not the same matches nothing, so the
    difference is that of the two mean scores. Two single cells with right and wrong answers have
    the exact test of McNemar and Tango's interval; all others Student's t.

    Args:
        first: values of its cells, from `rows_of`.
        second: those of the other side.
        level: of the interval, in (0, 1).
        margin: largest difference that is not relevant, on the scale of the score.
        strata: model -> its stratum; only models of one stratum are matched.
    """
    first_cells, second_cells = (side.index.to_frame(index=False) for side in (first, second))
    first_weights, second_weights = _matched_weights(first_cells, second_cells, strata or {})
    rows = pd.concat([first.iloc[first_weights.index], second.iloc[second_weights.index]])
    rows = rows.dropna(axis="columns")
    if rows.empty:
        return None
    values, items = rows.to_numpy(), rows.shape[1]
    counts = {"items": items, "cells": len(rows)}
    weights = np.array([*first_weights, *-second_weights])
    by_content = pd.Series(weights, rows.index.get_level_values("weights")).groupby(level=0).sum()
    if np.allclose(by_content, 0):
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
    fewest = min(len(first_weights), len(second_weights))
    least = 1 / (items + 2) ** 2 / fewest if is_binary else 0.0
    return {**_tested(estimate(values, weights, axes, least), level, margin), **counts}


def _matched_weights(
    first: pd.DataFrame, second: pd.DataFrame, strata: Mapping[str, str]
) -> tuple[pd.Series, pd.Series]:
    """Return number of a cell -> its weight, for each side; both empty where nothing matches.

    Every group of matched cells has the same weight, on each side even over its cells there.
    """
    sides = [
        side.assign(stratum=side["model"].map(strata) if strata else "") for side in (first, second)
    ]
    shared = {*sides[0]["stratum"]} & {*sides[1]["stratum"]}
    sides = [side[side["stratum"].isin(shared)] for side in sides]
    names = ["stratum", *(role for role in ROLES if {*sides[0][role]} == {*sides[1][role]})]
    groups = [pd.MultiIndex.from_frame(side[names]) for side in sides]
    common = groups[0].intersection(groups[1])
    weights = []
    for side, group in zip(sides, groups, strict=True):
        matched = side[group.isin(common)]
        sizes = matched.groupby(names)["model"].transform("size")
        weights.append(1 / sizes / len(common))
    return weights[0], weights[1]


def partial_comparisons(frame: pd.DataFrame, shown: ShownTasks) -> Iterator[str]:
    """Yield which comparisons leave out finished cells of their models.

    Args:
        frame: from `comparisons`.
        shown: the tasks that it is of.
    """
    for row in frame[frame["items"].notna() & frame["clusters"].eq(0)].to_dict("records"):
        models = [row["first"], row["second"]]
        cells = len(rows_of(shown.matrices[row["task"]], models, row["language"]))
        if row["cells"] < cells:
            yield (
                f"{row['task']}: {row['first']} and {row['second']} are compared over "
                f"{row['cells']:.0f} of their {cells} cells, those with the same experts on both "
                "sides; their scores are over all."
            )


def with_verdicts(frame: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """Return comparisons with corrected p-values and verdicts, which need a p below `alpha`.

    Differences and margins are two families: a difference is tested against zero and against the
    margin, each corrected for all primary comparisons.
    """
    frame = frame.copy()
    tested = (frame["family"] == "primary") & frame["p"].notna()
    for name in ("p", "p_margin"):
        frame[f"{name}_holm"] = np.nan
        frame.loc[tested, f"{name}_holm"] = holm(frame.loc[tested, name].astype(float).tolist())
    frame["verdict"] = [_verdict(row, alpha) for row in frame.to_dict("records")]
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
    """Return the numbers of a difference of scores, which is from -1 to 1 as they are from 0 to 1.

    An interval that ends there says that the data set no limit on that side.
    """
    half = estimated.half_width(level)
    low, high = np.clip([estimated.mean - half, estimated.mean + half], -1.0, 1.0)
    return {
        "difference": estimated.mean,
        "low": float(low),
        "high": float(high),
        "p": estimated.p_value(),
        "p_margin": estimated.p_outside(margin),
    }


def _verdict(row: Mapping[str, Any], alpha: float) -> str:
    if pd.isna(row["p"]):
        return NO_RESULT if pd.isna(row["difference"]) else ONE_MODEL
    corrected = "_holm" if row["family"] == "primary" else ""
    if row[f"p{corrected}"] < alpha:
        return BETTER if (row["difference"] > 0) == row["higher_is_better"] else WORSE
    return SAME if row[f"p_margin{corrected}"] < alpha else UNCLEAR
