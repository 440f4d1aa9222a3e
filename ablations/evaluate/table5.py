"""One model's scores in the layout of Table 5 of arXiv 2410.01335. Knows layout and notes only.

A row per benchmark and language as there, and beside the score what the paper's table does not
have: the other extraction, the share of answers in the right language, the share cut off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ablations.evaluate.table import format_score
from ablations.scoring.notes import join_notes
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, TRUNCATED, TRUNCATION_NOTED
from ablations.scoring.records import Evaluation, TaskScore
from ablations.tasks.catalog import Task

_HEAD = ("Task", "Language", "", "also", "in language", "cut off", "items")
_GAP = "  "
_WIDTH = 100


def render_table5(
    model: str,
    tasks: Sequence[Task],
    evaluations: Mapping[str, Evaluation],
    skipped: Mapping[str, str],
) -> str:
    """Return the table and its notes.

    Args:
        model: name of the column.
        tasks: the rows, in order.
        evaluations: task name -> what it gave.
        skipped: task name -> why it was not asked.
    """
    head = tuple(each or model for each in _HEAD)
    rows = [_row(task, evaluations.get(task.name), skipped) for task in tasks]
    titles = [task.title for task in tasks]
    shown = [
        (title if place == 0 or titles[place - 1] != title else "", *row)
        for place, (title, row) in enumerate(zip(titles, rows, strict=True))
    ]
    # A reason may be longer than a score; it must not widen the column.
    scored = [row for row in shown if row[3:] != ("",) * 4]
    widths = [max(len(row[place]) for row in [head, *scored]) for place in range(len(head))]
    widths[:2] = [max(len(row[place]) for row in [head, *shown]) for place in (0, 1)]
    lines = [
        _GAP.join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *shown]
    ]
    rule = "-" * max(len(line) for line in lines)
    notes = "\n".join(
        textwrap.fill(note, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        for note in join_notes(_notes(tasks, evaluations))
    )
    return "\n".join([lines[0], rule, *lines[1:]]) + f"\n\n{notes}"


def _row(task: Task, evaluation: Evaluation | None, skipped: Mapping[str, str]) -> tuple[str, ...]:
    if evaluation is None:
        return (task.label, f"skipped: {skipped[task.name]}", "", "", "", "")
    scores = [score for score in evaluation.scores if score.metric not in OBSERVED]
    main, *others = scores
    return (
        task.label,
        format_score(main),
        ", ".join(_named(score, main) for score in others),
        _share(evaluation, task.name, LANGUAGE_FIDELITY),
        _share(evaluation, task.name, TRUNCATED),
        str(main.n),
    )


def _named(score: TaskScore, main: TaskScore) -> str:
    name = score.metric if score.metric != main.metric else score.filter.removesuffix("-extract")
    return f"{name} {100 * score.value:.1f}"


def _share(evaluation: Evaluation, task: str, metric: str) -> str:
    score = _observed(evaluation, task, metric)
    return "" if score is None else f"{100 * score.value:.1f}"


def _observed(evaluation: Evaluation, task: str, metric: str) -> TaskScore | None:
    named = (s for s in evaluation.scores if (s.task, s.metric) == (task, metric))
    return next(named, None)


def _notes(tasks: Sequence[Task], evaluations: Mapping[str, Evaluation]) -> Iterator[str]:
    level = next(
        (
            f" with {100 * score.interval.level:.0f} % intervals over items"
            for each in evaluations.values()
            for score in each.scores
            if score.interval is not None
        ),
        "",
    )
    yield f"Percent{level}; BLEU and chrF++ from 0 to 100."
    done = [task for task in tasks if task.name in evaluations]
    if any(task.filters[:1] == ("strict-match",) for task in done):
        yield (
            "MGSM counts the number after the answer phrase that the examples use (strict); "
            "flexible takes the last number of the answer."
        )
    if any(_share(evaluations[task.name], task.name, LANGUAGE_FIDELITY) for task in done):
        yield "in language: share of answers in the language they should be in."
    if any(_share(evaluations[task.name], task.name, TRUNCATED) for task in done):
        yield "cut off: share of answers that ended at the token limit, not by themselves."
    for task in done:
        cut = _observed(evaluations[task.name], task.name, TRUNCATED)
        if cut is not None and cut.value > TRUNCATION_NOTED:
            yield (
                f"{task.name}: {100 * cut.value:.1f} % of the answers were cut off at the limit "
                f"({task.max_gen_toks} tokens unless said otherwise): its score may be too low "
                "by that much."
            )
        yield from evaluations[task.name].notes
    for task in done:
        for score in evaluations[task.name].scores:
            if score.signature is not None:
                yield f"{task.name}: {score.metric} is {score.signature}"
