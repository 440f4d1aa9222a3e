"""Tables of a report: pivots of scores and comparisons, as frames of text.

A table is a frame with its title, its notes and a key in ``attrs``, and whether it is a detail.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from ablations.drawing.text_table import terminal_width, text_table, wrapped
from ablations.paper.published import published_tables
from ablations.report.comparisons import BETTER, SAME, UNCLEAR, WORSE
from ablations.report.contrasts import EXPERT_KINDS
from ablations.report.shown_tasks import ShownTasks
from ablations.runs.observations import SCORE
from ablations.statistics.as_text import number as number_text
from ablations.statistics.as_text import p_text, percent, points, with_interval
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.statistics.means_and_p_values import alpha_of
from ablations.study.schema import Study
from ablations.tasks.names import language_name, task_name

MARKS = {BETTER: "▲", WORSE: "▼", SAME: "=", UNCLEAR: "?"}
"""Verdict -> its sign in small tables."""

BELOW = "▽"
"""Sign of a score that is below its floor."""

GAP = "–"
"""Stands for a number that is missing."""

_WIDTH = 100
_ENDS = {
    "pairs": (1, {"avg": "value", "max": "max"}),
    "overview": (2, {"min": "min", "avg": "value", "max": "max"}),
}
"""Layout -> number of the paper's table, and its rows: name -> column of the scores."""
UNCORRECTED = "interval (not corrected)"
"""Column with the intervals of differences, each of its own level, where p is corrected, too."""

_TIED, _ALIKE = "best, tied", "same"
"""Stand for the best score that several models of a grid have, and that all of them have."""

_UNITS = "Scores in percent; BLEU and chrF++ on a scale of 0 to 100."


def table(
    frame: pd.DataFrame, key: str, title: str, *notes: str, is_detail: bool = False
) -> pd.DataFrame:
    """Return a frame of text as a table of a report; a page shows one that is a detail folded."""
    shown = frame.fillna(GAP).astype("str")
    shown_notes = tuple(filter(None, notes))
    shown.attrs = {"key": key, "title": title, "notes": shown_notes, "is_detail": is_detail}
    return shown


def frame_text(frame: pd.DataFrame, labels: int = 1) -> str:
    """Return a table with its notes, for a terminal.

    Args:
        frame: from `table`.
        labels: number of columns from the left that are repeated where a table is too wide.
    """
    rows = [[textwrap.fill(text, 40) for text in row] for row in frame.to_numpy().tolist()]
    heads = [textwrap.fill(str(name), 24) for name in frame.columns]
    width = min(_WIDTH, terminal_width() or _WIDTH)
    notes = [wrapped(note, width) for note in frame.attrs["notes"]]
    return "\n\n".join([text_table(heads, rows, labels=labels, width=width), *notes])


def scores_table(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return models × tasks, with intervals."""
    records = frame.to_dict("records")
    texts = ((row["model"], column_name(row, frame), _score_text(row)) for row in records)
    return table(
        _wide("model", texts),
        "scores",
        "Scores",
        f"{_UNITS} Intervals: {study.evaluate.level:.0%}, over {sampled_text(frame)}.",
        floors_text(frame),
    )


def sampled_text(scores: pd.DataFrame) -> str:
    """Return what the intervals of scores and of their differences are over.

    Cells of other settings, which a difference may be averaged over, are no sample.

    Args:
        scores: from `score_frame`.
    """
    if (scores["cells"] <= 1).all():
        return "items"
    return "experts, seeds and items" if (scores["trainings"] > 1).any() else "seeds and items"


def floors_text(frame: pd.DataFrame) -> str:
    """Return what the sign of a score below its floor means; empty where there is none."""
    floors = "; ".join(
        f"{task_name(row['task'])}: {row['floor_name']} {percent(row['floor'])}"
        for row in frame[frame["is_below"]].drop_duplicates("task").to_dict("records")
    )
    return (
        f"{BELOW}: below what a rule that does not read would score ({floors})." if floors else ""
    )


def pairs_table(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Return the range of scores over pairs of experts, and how many are above both experts."""
    part = frame[frame["pairs"].notna()]
    if part.empty:
        return None
    rows = [
        {
            "model": row["model"],
            "task": column_name(row, frame),
            "pairs better than both of their experts": f"{row['above']:.0f} of {row['pairs']:.0f}",
            "min": percent(row["min"]),
            "mean": percent(row["value"]),
            "max": percent(row["max"]),
        }
        for row in part.to_dict("records")
    ]
    note = "Range over pairs of experts. The highest of several scores is too high by chance."
    return table(pd.DataFrame(rows), "over-pairs", "Pairs", note, _UNITS)


def comparisons_table(frame: pd.DataFrame, scores: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return all comparisons, with every number.

    Args:
        frame: comparisons, from `comparison_frame`.
        scores: from `score_frame`.
        level: of the intervals, in (0, 1).
    """
    rows = [
        {
            "contrast": f"{row['first']} − {row['second']}",
            "task": task_text(row, frame),
            "difference": "" if pd.isna(row["difference"]) else points(row["difference"]),
            UNCORRECTED: interval_text(row),
            "p": "" if pd.isna(row["p"]) else p_text(row["p"]),
            "corrected p": "" if pd.isna(row["p_holm"]) else p_text(row["p_holm"]),
            "verdict": verdict_text(row),
            "family": row["family"] or "exploratory",
            "over": _counts_text(row),
        }
        for row in frame.to_dict("records")
    ]
    columns = ["contrast", "task", "difference", UNCORRECTED, "p", "corrected p", "verdict"]
    number = int(((frame["family"] == "primary") & frame["p"].notna()).sum())
    return table(
        pd.DataFrame(rows, columns=[*columns, "family", "over"]),
        "comparisons",
        "All comparisons",
        f"Differences in points, first minus second, with {level:.0%} intervals over "
        f"{sampled_text(scores)}. Corrected p: Holm's method over the primary comparisons "
        f"({number}). Exploratory comparisons and all intervals are not corrected.",
    )


def answers_table(frame: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return the primary comparisons for the first screen: contrasts × tasks.

    The mean over languages of the same contrasts is a column, too.
    """
    primary = frame[frame["family"] == "primary"]
    sides = ["first", "second"]
    means = frame[frame["language"] == "all"].merge(primary[sides].drop_duplicates(), on=sides)
    texts = []
    for row in (*primary.to_dict("records"), *means.to_dict("records")):
        text = GAP
        if not pd.isna(row["p"]):
            text = f"{points(row['difference'])} {interval_text(row)}".rstrip()
            text += f" {MARKS[row['verdict']]}"
        elif not pd.isna(row["difference"]):
            text = row["verdict"]
        texts.append((f"{row['first']} − {row['second']}", task_text(row, frame), text))
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    exploratory = "; means over languages are exploratory" if len(means) else ""
    return table(
        _wide("contrast", texts).fillna(""),
        "answers",
        "Main comparisons",
        f"Differences in points with {level:.0%} intervals, which are not corrected; {marks} "
        f"(p corrected by Holm's method{exploratory}).",
    )


def best_table(best: pd.DataFrame, scores: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return how far the models of a grid are from the best on every task: models × tasks.

    Args:
        best: from `differences_to_best`.
        scores: from `score_frame`.
        level: of the intervals, in (0, 1).
    """
    tied = best.groupby(["task", "language"])["is_best"].transform("sum")
    texts = []
    for row in best.assign(tied=tied).to_dict("records"):
        text = GAP
        if not row["tied"]:
            text = _ALIKE
        elif row["is_best"]:
            text = "best" if row["tied"] == 1 else _TIED
        elif not pd.isna(row["p_pairs"]):
            mark = MARKS[UNCLEAR] if row["is_open"] else MARKS[WORSE]
            text = f"{points(row['difference'])} {interval_text(row)}".rstrip() + f" {mark}"
        texts.append((row["model"], task_text(row, scores), text))
    return table(
        _wide("model", texts),
        "to-best",
        "Differences to the best",
        f"Points below the best score of the task, with {level:.0%} intervals, which are not "
        f"corrected. {MARKS[WORSE]}: worse, p below {alpha_of(level):g}, corrected for all pairs "
        f"of models on the task; {MARKS[UNCLEAR]}: cannot be told from the best. The best score is "
        "the highest of several and likely too high.",
        f"{_TIED}: several have the best score; intervals are to the first of them."
        if (tied > 1).any()
        else "",
        f"{_ALIKE}: all models have the same score." if (tied == 0).any() else "",
        is_detail=True,
    )


def cells_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return every score of every cell, and the tasks without a score."""
    scores = scores.assign(is_share=scores.groupby([*SCORE])["is_share"].transform("all"))
    frame = scores.drop_duplicates(["cell", "language", *SCORE])
    rows = [
        {
            "cell": row["cell"],
            "task": row["task"],
            "metric": f"{row['metric']}, {row['filter']}" if row["state"] == "done" else GAP,
            "score": _value_text(row) if row["state"] == "done" else GAP,
            "items": f"{row['n']:.0f}" if row["state"] == "done" else GAP,
            "state": f"{row['state']}: {row['reason']}" if row["reason"] else row["state"],
        }
        for row in frame.to_dict("records")
    ]
    note = f"Intervals of single cells are over items. {_UNITS}"
    return table(pd.DataFrame(rows), "cells", "Cells", note, is_detail=True)


def layout_tables(
    frame: pd.DataFrame, keys: Sequence[str], shown: ShownTasks
) -> Iterator[pd.DataFrame]:
    """Yield layouts of the paper by their names, each with the published numbers after it.

    Args:
        frame: from `score_frame`.
        keys: ``pairs``, ``overview`` or ``souping``.
        shown: the tasks of `frame`.
    """
    for key in keys:
        if key in _ENDS:
            yield _ends_table(frame, key, shown)
        else:
            yield _souping_table(frame)
        document = published_tables()
        paper = document["tables"][key]
        columns = [paper["source"], *paper["columns"]]
        rows = [
            [row["name"], *(GAP if value is None else f"{value:.1f}" for value in row["values"])]
            for row in paper["rows"]
        ]
        title = f"Published: {paper['source']} of arXiv 2410.01335"
        note = f"For reference, not this run: {document['protocol']}. {paper['notes']}"
        numbers = pd.DataFrame(rows, columns=columns)
        yield table(numbers, f"published-{key}", title, note, is_detail=True)


def task_text(row: Any, frame: pd.DataFrame) -> str:
    """Return a task in words, with the language of the experts where several have it."""
    if row["language"] in ("", "all"):
        return str(row["task"]) if row["language"] else _unique_name(row["task"], frame)
    several = frame[frame["task"] == row["task"]]["language"].nunique() > 1
    experts = f" ({language_name(row['language'])} experts)" if several else ""
    return f"{_unique_name(row['task'], frame)}{experts}"


def _unique_name(task: str, frame: pd.DataFrame) -> str:
    name = task_name(task)
    namesakes = [task for task in frame["task"].unique() if task_name(task) == name]
    return name if len(namesakes) < 2 else task


def column_name(row: Any, frame: pd.DataFrame) -> str:
    """Return a task with its metric, where that is not in percent of right answers."""
    metric = CORPUS_METRICS.get(row["metric"]) or row["metric"].replace("_", " ")
    return f"{task_text(row, frame)}, {metric}"


def interval_text(row: Any) -> str:
    """Return the interval of a difference, in points."""
    return "" if pd.isna(row["low"]) else f"[{points(row['low'])}, {points(row['high'])}]"


def verdict_text(row: Any) -> str:
    """Return the verdict; where it is open, the difference that could have been missed."""
    if row["verdict"] != UNCLEAR or pd.isna(row["low"]):
        return str(row["verdict"])
    return f"cannot tell: {missed_text(row, 'points possible')}"


def missed_text(row: Any, end: str) -> str:
    """Return the largest difference that the interval holds, before `end`, or why there is none."""
    largest = max(abs(row["low"]), abs(row["high"]))
    if largest < 1:
        return f"up to {percent(largest)} {end}"
    if row["clusters"]:
        return f"the {row['clusters']} means differ too much to limit the difference"
    if row["cells"] > 2:
        return "too few trainings or items to limit the difference"
    return "too few items to limit the difference"


def _wide(head: str, texts: Iterable[tuple[str, str, str]]) -> pd.DataFrame:
    """Return (row, column, text) as a table whose first column has the names of rows."""
    rows: dict[str, dict[str, str]] = {}
    for name, column, text in texts:
        rows.setdefault(name, {head: name})[column] = text
    return pd.DataFrame(list(rows.values()))


def _value_text(row: Any) -> str:
    if pd.isna(row["value"]):
        return GAP
    interval = None if pd.isna(row["low"]) else (row["low"], row["high"])
    return with_interval(row["value"], interval, row["is_share"])


def _score_text(row: Any) -> str:
    text = _value_text(row)
    if row["cells"] < row["cells_expected"]:
        text += f" ({row['cells']} of {row['cells_expected']} cells)"
    return f"{text} {BELOW}" if row["is_below"] else text


def _counts_text(row: Any) -> str:
    if pd.isna(row["items"]):
        return ""
    if row["clusters"]:
        return f"{row['clusters']} {'languages' if row['language'] == 'all' else 'bases'}"
    return f"{row['items']:,.0f} items, {row['cells']:.0f} cells"


def _ends_table(frame: pd.DataFrame, key: str, shown: ShownTasks) -> pd.DataFrame:
    """Return the layout of Table 1 (``pairs``) or 2 (``overview``): ends over pairs × models."""
    models = list(dict.fromkeys(frame["model"]))
    number, ends = _ENDS[key]
    rows = []
    for (task, code), part in frame.groupby(["task", "language"], sort=False):
        head = column_name({**part.iloc[0], "language": code}, frame)
        by_model = part.set_index("model")
        is_english = shown.task_languages[str(task)] == "en"
        for name, column in ends.items():
            if not is_english or name == "avg":
                values = by_model[column].reindex(models)
                is_share = bool(part["is_share"].iloc[0])
                rows.append([f"{head} {name}", *(_plain(value, is_share) for value in values)])
    # A mean over tasks is of one metric, and of models that have all of its tasks.
    metric = frame["metric"].iloc[0]
    scores = frame[frame["metric"] == metric]
    finished = scores[scores["value"].notna() & (scores["cells"] == scores["cells_expected"])]
    values, most = finished.groupby("model")["value"], scores.groupby("model").size().max()
    means = values.mean().where(values.size() == most).reindex(models)
    tasks = scores["task"].nunique()
    if tasks > 1:
        is_share = bool(scores["is_share"].all())
        rows.append(
            [f"all {tasks} {metric} tasks avg", *(_plain(mean, is_share) for mean in means)]
        )
    return table(
        pd.DataFrame(rows, columns=["over pairs", *models]),
        key,
        f"Layout of Table {number}",
        "The last row weighs every task and language alike." if tasks > 1 else "",
        _UNITS,
    )


def _souping_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the layout of Table 6: merges only."""
    merges = frame[~frame["kind"].isin(("base", *EXPERT_KINDS))]
    texts = (
        (column_name(row, frame), row["model"], _plain(row["value"], row["is_share"]))
        for row in merges.to_dict("records")
    )
    return table(
        _wide("task", texts),
        "souping",
        "Layout of Table 6",
        "Mean over the experts of a model.",
        _UNITS,
    )


def _plain(value: Any, is_share: bool) -> str:
    return GAP if pd.isna(value) else number_text(value, is_share)
