"""The answer of a study in plain sentences: every primary comparison, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ablations.report.analysis import Analysis
from ablations.report.comparisons import (
    BETTER,
    NO_RESULT,
    ONE_MODEL,
    SAME,
    UNCLEAR,
    WORSE,
)
from ablations.report.contrasts import EXPERT_KINDS
from ablations.report.tables import interval_text, missed_text, task_text
from ablations.statistics.as_text import number as number_text
from ablations.statistics.as_text import p_text, percent, points
from ablations.study.schema import ReportBlock
from ablations.study.wording import kind_text
from ablations.tasks.names import task_name

MOST_SENTENCES = 4
"""Primary comparisons with a sentence each; more are counted, above a table of all."""

_MOST_NAMED = 3
"""Settings with the same best score that are named; more are counted."""

_RIVALS = {
    "better_expert": "both experts",
    "setting": "another setting",
    "base": "the base",
    "first_setting": "the first setting of its kind",
}
_SEVERAL = {"better_expert", "setting", "first_setting"}
"""Rivals that may be several models."""

_COUNTED = {
    NO_RESULT: "without a result",
    WORSE: "worse",
    UNCLEAR: "unclear",
    SAME: "without relevant difference",
    ONE_MODEL: "of equal weights",
    BETTER: "better",
}
"""Verdict -> how it is counted. Of rivals that must all be beaten, the first in this order."""


def sentences(analysis: Analysis) -> list[str]:
    """Return the answer, what matters most first."""
    frame, scores, best = analysis.comparison_frame, analysis.score_frame, analysis.best
    report = analysis.study.report
    lines = [*_floors(scores)]
    if best is not None and not report.primary.is_stated:  # else the study says what answers it
        bests = best_sentences(best, scores[scores["is_primary"]])
        lines += bests if len(bests) <= MOST_SENTENCES else []
    lines += comparison_sentences(frame, report, is_grid=best is not None)
    lines += _pairs(scores)
    if scores["trainings"].max() == 1:
        lines.append(
            "Each expert was trained once: no interval covers another training run, which may "
            "differ by more."
        )
    return lines


def comparison_sentences(
    frame: pd.DataFrame, report: ReportBlock, *, is_grid: bool = False
) -> list[str]:
    """Return how the primary comparisons came out, and the means over languages or bases of them.

    Args:
        frame: comparisons, from `comparison_frame`.
        report: of the study.
        is_grid: whether the merges are the settings of a grid.
    """
    primary = frame[frame["family"] == "primary"]
    if primary.empty:
        lines = [
            "No comparison was planned. The tables have all scores, and layerswap compare tests "
            "models against each other."
        ]
    elif has_answers_table(frame):
        by = "Planned" if report.primary.is_stated else "By default"
        lines = [*_counts(primary, by, is_grid=is_grid)]
    else:
        lines = [*_answers(primary, report.margin)]
    return [*lines, *_clusters(frame, primary)]


def has_answers_table(frame: pd.DataFrame) -> bool:
    """Return whether the primary comparisons are too many for a sentence each."""
    return int((frame["family"] == "primary").sum()) > MOST_SENTENCES


def answer(row: Any, frame: pd.DataFrame, margin: float) -> str:
    """Return one comparison in a sentence or two."""
    first, second, verdict = (row[name] for name in ("first", "second", "verdict"))
    task = task_text(row, frame)
    if verdict == ONE_MODEL:
        return f"{first} and {second} have the same weights. Nothing is tested on {task}."
    if verdict == NO_RESULT:
        return f"On {task}, {first} and {second} could not be compared."
    if verdict == SAME:
        answer = f"{first} and {second} have no relevant difference"
        return f"On {task}, {answer}. It is {_points(row)}, within ±{margin:g}."
    if verdict == UNCLEAR:
        answer = f"the data cannot tell {first} from {second}"
        end = "" if pd.isna(row["low"]) else f"; {missed_text(row, 'points are possible')}"
        if row["low"] > 0 or row["high"] < 0:  # by itself it would be evidence
            end = f"; corrected p = {p_text(row['p_holm'])}, the interval is not corrected"
    else:
        p = p_text(row["p_holm"] if row["family"] == "primary" else row["p"])
        answer = f"{first} is {verdict} than {second}"
        end = f", p {p if p.startswith('<') else f'= {p}'}"
    return f"On {task}, {answer}. The difference is {_points(row)}{end}."


def best_sentences(best: pd.DataFrame, scores: pd.DataFrame) -> list[str]:
    """Return which setting of a grid scores best on every task of `scores`, and how many may be it.

    Args:
        best: from `differences_to_best`.
        scores: from `score_frame`.
    """
    lines = []
    for (task, language), part in best.groupby(["task", "language"], sort=False):
        rows = scores[(scores["task"] == task) & (scores["language"] == language)]
        first = part["best"].iloc[0]
        row = rows[rows["model"] == first]
        if row.empty or part["p_pairs"].isna().all():
            continue
        score, tied = row.iloc[0], part[part["is_best"]]
        value = f"({number_text(score['value'], score['is_share'])})"
        if tied.empty:
            lines.append(
                f"On {task_text(score, scores)}, all {len(part)} settings score the same {value}."
            )
            continue
        rest = part[~part["is_best"]]
        others, still_open = len(rest), int(rest["is_open"].sum())
        them = "it" if len(tied) == 1 else "them"
        text = f"{still_open} of the other {others} settings cannot be told from {them}."
        if still_open == others:
            every = "the other setting" if others == 1 else f"any of the other {others} settings"
            text = f"The data cannot tell {every} from {them}."
        elif not still_open:
            text = f"All of the other {others} settings are worse."
            if others == 1:
                text = "The other setting is worse."
        winners = f"{len(tied)} settings"
        if len(tied) <= _MOST_NAMED:
            *some, last = tied["model"]
            winners = f"{', '.join(some)} and {last}" if some else last
        verb = "scores" if len(tied) == 1 else "score"
        lines.append(f"On {task_text(score, scores)}, {winners} {verb} best {value}. {text}")
    return lines


def _answers(primary: pd.DataFrame, margin: float) -> Iterator[str]:
    """Yield every primary comparison; those with both experts as one where both are beaten."""
    groups = primary.groupby(["first", "task", "language", "rival"], sort=False)
    for (model, *_, rival), part in groups:
        rows = part.to_dict("records")
        if rival == "better_expert" and len(rows) == 2 and {*part["verdict"]} == {BETTER}:
            first, second = rows
            yield (
                f"On {task_text(first, primary)}, {model} beats both experts. The difference is "
                f"{_points(first)} to {first['second']}. To {second['second']} it is "
                f"{_points(second)}."
            )
        else:
            yield from (answer(row, primary, margin) for row in rows)


def _counts(primary: pd.DataFrame, by: str, *, is_grid: bool) -> Iterator[str]:
    """Yield how the primary comparisons came out, one sentence per rival.

    Args:
        primary: comparisons.
        by: begins the sentences.
        is_grid: whether the merges are the settings of a grid.
    """
    for rival, part in primary.groupby("rival", sort=False):
        verdicts = part["verdict"].map(list(_COUNTED).index)
        if rival == "better_expert":
            verdicts = verdicts.groupby(
                [part[column] for column in ("first", "task", "language")]
            ).min()
            kinds = [
                kind
                for kind in EXPERT_KINDS
                if part["second"].str.startswith(kind_text(kind)).any()
            ]
            rival = kinds[0] if len(kinds) == 1 else rival
        numbers = verdicts.value_counts().sort_index(ascending=False)
        words = list(_COUNTED.values())
        counts = [f"{number} {words[rank]}" for rank, number in numbers.items()]
        baseline = kind_text(str(rival))
        name = _RIVALS.get(str(rival)) or (baseline if baseline.isupper() else f"the {baseline}")
        told = ", ".join(counts)
        if is_grid and rival not in _SEVERAL and {*part["verdict"]} == {UNCLEAR}:
            noun = "settings" if part["first"].is_unique else "comparisons"
            told = f"none of {len(part)} {noun} can be told from it"
        yield f"{by}, against {name}: {told} (table below)."


def _clusters(frame: pd.DataFrame, primary: pd.DataFrame) -> Iterator[str]:
    """Yield the means over languages or bases of what the primary comparisons are about."""
    pairs = {*zip(primary["first"], primary["second"], strict=True)}
    rows = [
        row
        for row in frame[frame["clusters"] > 0].to_dict("records")
        if row["language"] != "all" or (row["first"], row["second"]) in pairs
    ]
    for row in rows if len(rows) <= MOST_SENTENCES else ():
        if row["language"] == "all":
            clusters = f"{row['clusters']} languages"
        else:
            clusters = f"{row['clusters']} bases on {task_text(row, frame)}"
        yield (
            f"Over {clusters}, {row['first']} minus "
            f"{row['second'].split(', mean')[0]} is {_points(row)}. Verdict, not corrected: "
            f"{row['verdict']}."
        )


def _pairs(scores: pd.DataFrame) -> Iterator[str]:
    """Yield how many pairs of experts are above both experts on the primary tasks."""
    rows = scores[scores["pairs"].notna() & scores["is_primary"]]
    if len(rows) > MOST_SENTENCES:
        above, pairs = int(rows["above"].sum()), int(rows["pairs"].sum())
        yield f"In all, {above} of {pairs} pairs are better than both experts (table Pairs)."
        return
    for row in rows.to_dict("records"):
        yield (
            f"On {task_text(row, scores)}, {row['above']:.0f} of {row['pairs']:.0f} pairs of "
            f"{row['model']} are better than both of their experts. They score from "
            f"{percent(row['min'])} to {percent(row['max'])}, on average {percent(row['value'])}."
        )


def _floors(scores: pd.DataFrame) -> Iterator[str]:
    """Yield which tasks have scores below what a rule that does not read would score."""
    for task, part in scores[scores["is_below"]].groupby("task", sort=False):
        floor = part.iloc[0]
        number = scores[scores["task"] == task]["model"].nunique()
        yield (
            f"On {task_name(str(task))}, {part['model'].nunique()} of {number} models score below "
            f"a rule that does not read. It scores {percent(floor['floor'])} "
            f"({floor['floor_name']})."
        )


def _points(row: Any) -> str:
    return f"{points(row['difference'])} points {interval_text(row)}".rstrip()
