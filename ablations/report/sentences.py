"""The answer of a study in plain sentences: every primary comparison, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from ablations.report.compare import BETTER, NO_RESULT, ONE_MODEL, SAME, UNCLEAR, WORSE
from ablations.report.tables import interval_text, task_text
from ablations.statistics.as_text import p_text, percent, points
from ablations.study.labels import kind_text, task_name
from ablations.study.schema import Study

MOST_SENTENCES = 4
"""Primary comparisons that have a sentence each; of more, a table stands under one sentence."""

_NOTHING = (
    "No comparison was planned. The tables have all scores; layerswap compare tests models "
    "against each other."
)


def sentences(frame: pd.DataFrame, scores: pd.DataFrame, study: Study) -> list[str]:
    """Return the answer, what matters most first.

    Args:
        frame: comparisons.
        scores: from `score_frame`.
        study: with the margin.
    """
    primary = frame[frame["family"] == "primary"]
    lines = [*_floors(scores)]
    if primary.empty:
        lines.append(_NOTHING)
    elif len(primary) > MOST_SENTENCES:
        lines.append(_count(primary))
    else:
        lines += _answers(primary, study)
    lines += _clusters(frame, primary)
    lines += _pairs(scores)
    if scores["cells"].max() <= 1:
        lines.append(
            "Each expert was trained once: intervals are over items, and another training run "
            "may differ by more."
        )
    return lines


def has_answers_table(frame: pd.DataFrame) -> bool:
    """Return whether the primary comparisons are too many for a sentence each."""
    return int((frame["family"] == "primary").sum()) > MOST_SENTENCES


def answer(row: Any, frame: pd.DataFrame, margin: float) -> str:
    """Return one comparison as a sentence."""
    first, second, task = row["first"], row["second"], task_text(row, frame)
    numbers = f"{_points(row)} {interval_text(row)}" if not pd.isna(row["p"]) else ""
    p = row["p_holm"] if row["family"] == "primary" else row["p"]
    if row["verdict"] in (BETTER, WORSE):
        return f"On {task}, {first} is {row['verdict']} than {second}: {numbers}, p {_p(p)}."
    if row["verdict"] == SAME:
        return (
            f"On {task}, {first} and {second} have no relevant difference: {numbers}, "
            f"within ±{margin:g} points."
        )
    if row["verdict"] == UNCLEAR:
        largest = percent(max(abs(row["low"]), abs(row["high"])))
        return (
            f"On {task}, the data cannot tell {first} from {second}: {numbers}; up to {largest} "
            "points are possible."
        )
    if row["verdict"] == ONE_MODEL:
        return f"{first} and {second} have the same weights, so nothing is tested on {task}."
    return f"On {task}, {first} and {second} could not be compared: {row['verdict']}."


def _answers(primary: pd.DataFrame, study: Study) -> Iterator[str]:
    margin = study.report.margin
    done: set[int] = set()
    for at, row in primary.iterrows():
        if at in done:
            continue
        both = primary[
            (primary["rival"] == "better_expert")
            & (primary[["first", "task", "language"]] == row[["first", "task", "language"]]).all(
                axis=1
            )
        ]
        if row["rival"] == "better_expert" and len(both) == 2 and (both["verdict"] == BETTER).all():
            done |= set(both.index)
            one, other = both.to_dict("records")
            yield (
                f"On {task_text(row, primary)}, {row['first']} beats both experts: {_points(one)} "
                f"{interval_text(one)} over the {one['second']}, {_points(other)} "
                f"{interval_text(other)} over the {other['second']}."
            )
            continue
        yield answer(row, primary, margin)


def _count(primary: pd.DataFrame) -> str:
    """Return how the primary comparisons came out, by rival, in one sentence."""
    words = {
        BETTER: "better",
        WORSE: "worse",
        SAME: "without relevant difference",
        UNCLEAR: "unclear",
        ONE_MODEL: "of the same weights",
        NO_RESULT: "without a result",
    }
    names = {"better_expert": "both experts", "setting": "another setting", "base": "the base"}
    parts = []
    for rival, part in primary.groupby("rival", sort=False):
        verdicts = part.groupby(["first", "task", "language"], sort=False)["verdict"].agg(list)
        if rival != "better_expert":
            verdicts = part["verdict"].map(lambda verdict: [verdict])
        counts = verdicts.map(_joint).value_counts()
        told = [f"{counts[key]} {words[key]}" for key in words if key in counts]
        name = names.get(str(rival)) or f"the {kind_text(str(rival))}"
        parts.append(f"against {name} {', '.join(told)}")
    return f"Planned comparisons: {'; '.join(parts)} (table below)."


def _joint(verdicts: Sequence[str]) -> str:
    """Return the verdict against several rivals, all of which must be beaten."""
    for verdict in (NO_RESULT, WORSE, UNCLEAR, SAME, ONE_MODEL):
        if verdict in verdicts:
            return verdict
    return BETTER


def _clusters(frame: pd.DataFrame, primary: pd.DataFrame) -> Iterator[str]:
    """Yield the means over languages or bases of what the primary comparisons are about."""
    pairs = {(row["first"], row["second"]) for row in primary.to_dict("records")}
    rows = [
        row
        for row in frame[frame["clusters"] > 0].to_dict("records")
        if row["language"] != "all" or (row["first"], row["second"]) in pairs
    ]
    for row in rows if len(rows) <= MOST_SENTENCES else ():
        what = "languages" if row["language"] == "all" else "bases"
        task = "" if row["language"] == "all" else f" on {task_text(row, frame)}"
        second = row["second"].split(", mean")[0]
        yield (
            f"Over {row['clusters']} {what}{task}, {row['first']} minus {second} is {_points(row)} "
            f"{interval_text(row)} ({row['verdict']}, exploratory)."
        )


def _pairs(scores: pd.DataFrame) -> Iterator[str]:
    """Yield how many pairs of experts are above both experts on the primary tasks."""
    rows = scores[scores["pairs"].notna() & scores["is_primary"]]
    if len(rows) > MOST_SENTENCES:
        above, pairs = int(rows["above"].sum()), int(rows["pairs"].sum())
        yield f"In all, {above} of {pairs} pairs are above both own experts (table Pairs)."
        return
    for row in rows.to_dict("records"):
        yield (
            f"On {task_text(row, scores)}, {row['above']:.0f} of {row['pairs']:.0f} pairs of "
            f"{row['model']} are above both own experts (min {percent(row['min'])}, mean "
            f"{percent(row['value'])}, max {percent(row['max'])})."
        )


def _floors(scores: pd.DataFrame) -> Iterator[str]:
    """Yield which tasks have scores below what a rule that does not read would score."""
    for task, part in scores[scores["is_below"]].groupby("task", sort=False):
        floor = part.iloc[0]
        number = scores[scores["task"] == task]["model"].nunique()
        yield (
            f"On {task_name(str(task))}, {part['model'].nunique()} of {number} models score below "
            f"a rule that does not read ({floor['floor_name']}: {percent(floor['floor'])})."
        )


def _points(row: Any) -> str:
    return f"{points(row['difference'])} points"


def _p(p: float) -> str:
    text = p_text(p)
    return f"< {text[1:]}" if text.startswith("<") else f"= {text}"
