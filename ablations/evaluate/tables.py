"""Scores of one model in the layout of Table 5 of arXiv 2410.01335.

Next to the score stands what the paper's does not have: the other extraction, the share of answers
in the right language, the share cut off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ablations.drawing.text_table import text_table
from ablations.scoring.notes import join_notes, truncation_note
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, TRUNCATED, TRUNCATION_NOTED
from ablations.scoring.records import Evaluation, TaskScore
from ablations.statistics.as_text import percent, with_interval
from ablations.tasks.catalog import Task

_HEAD = ("Task", "Language", "", "also", "in language", "cut off", "items")


def render_table5(
    model: str,
    tasks: Sequence[Task],
    evaluations: Mapping[str, Evaluation],
    remarks: Sequence[str] = (),
) -> str:
    """Return the table and its notes; tasks that are not of the suite follow, by their names.

    Args:
        model: name of the column.
        tasks: the rows, in order.
        evaluations: task name -> what it gave; a task without one was skipped.
        remarks: why, and on prompts and generation.
    """
    suite = {task.name: (task.title, task.label) for task in tasks}
    others = {name: (_title(name, e), "") for name, e in evaluations.items() if name not in suite}
    rows, last = [], ""
    for name, (title, label) in {**suite, **others}.items():
        cells = _cells(evaluations[name]) if name in evaluations else ("skipped", *[""] * 4)
        rows.append(("" if title == last else title, label, *cells))
        last = title
    table = text_table([each or model for each in _HEAD], rows, labels=3)
    notes = join_notes(
        (*remarks, *_notes([t for t in tasks if t.name in evaluations], evaluations))
    )
    wrapped = (
        textwrap.fill(note, 100, initial_indent="- ", subsequent_indent="  ") for note in notes
    )
    return "\n".join([table, "", *wrapped])


def _title(name: str, evaluation: Evaluation) -> str:
    return f"{name} {evaluation.score(name).metric}, {evaluation.num_fewshot.get(name, 0)}-shot"


def _cells(evaluation: Evaluation) -> tuple[str, ...]:
    main, *others = [score for score in evaluation.scores if score.metric not in OBSERVED]
    also = (f"{_name(score, main)} {percent(score.value)}" for score in others)
    shares = (_observed(evaluation, metric) for metric in (LANGUAGE_FIDELITY, TRUNCATED))
    shown = ("" if share is None else percent(share) for share in shares)
    return (_text(main), ", ".join(also), *shown, str(main.n))


def _text(score: TaskScore) -> str:
    return with_interval(score.value, score.interval, score.is_share)


def _name(score: TaskScore, main: TaskScore) -> str:
    return score.metric if score.metric != main.metric else score.filter.removesuffix("-extract")


def _observed(evaluation: Evaluation, metric: str) -> float | None:
    return next((s.value for s in evaluation.scores if s.metric == metric), None)


def _notes(done: Sequence[Task], evaluations: Mapping[str, Evaluation]) -> Iterator[str]:
    scores = [score for each in evaluations.values() for score in each.scores]
    levels = [score.interval.level for score in scores if score.interval is not None]
    level = f", with {100 * levels[0]:.0f} % intervals over items" if levels else ""
    yield f"Scores in percent{level}; BLEU and chrF++ on a scale of 0 to 100."
    for name, evaluation in evaluations.items():
        main = evaluation.scores[0]
        if main.deviation is not None:
            yield (
                f"{name}: mean of {main.repeats} samples of each item; standard deviation of the "
                f"score over them {percent(main.deviation)}; intervals count items and repeats as "
                "two levels."
            )
    if any(task.filters[:1] == ("strict-match",) for task in done):
        yield (
            "MGSM: the score counts the number after the answer phrase of the examples (strict); "
            "flexible takes the last number of the answer."
        )
    metrics = {score.metric for task in done for score in evaluations[task.name].scores}
    if LANGUAGE_FIDELITY in metrics:
        yield "in language: share of answers in the language they should be in."
    if TRUNCATED in metrics:
        yield "cut off: share of answers that ended at the token limit, not by themselves."
    suite = {task.name for task in done}
    for name, evaluation in evaluations.items():
        cut = _observed(evaluation, TRUNCATED)
        if name in suite and cut is not None and cut > TRUNCATION_NOTED:
            yield truncation_note(name, f"{percent(cut)} % of the answers", "the token limit")
        yield from evaluation.notes
    for score in scores:
        if score.signature is not None and score.task in suite:
            yield f"{score.task}: {score.metric} is {score.signature}"
