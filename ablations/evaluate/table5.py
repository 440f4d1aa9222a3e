"""One model's scores in the layout of Table 5 of arXiv 2410.01335.

A row per benchmark and language as there, and next to the score what the paper's table does not
have: the other extraction, the share of answers in the right language, the share cut off.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from ablations.drawing.text_table import text_table
from ablations.evaluate.table import format_score
from ablations.scoring.notes import join_notes, truncation_note
from ablations.scoring.observed import LANGUAGE_FIDELITY, OBSERVED, TRUNCATED, TRUNCATION_NOTED
from ablations.scoring.records import Evaluation, TaskScore
from ablations.statistics.as_text import percent
from ablations.tasks.catalog import Task

_HEAD = ("Task", "Language", "", "also", "in language", "cut off", "items")
_WIDTH = 100


def render_table5(
    model: str,
    tasks: Sequence[Task],
    evaluations: Mapping[str, Evaluation],
    skipped: Mapping[str, str],
    remarks: Sequence[str] = (),
) -> str:
    """Return the table and its notes; tasks that are not of the suite follow, by their names.

    Args:
        model: name of the column.
        tasks: the rows, in order.
        evaluations: task name -> what it gave.
        skipped: task name -> why.
        remarks: on prompts and generation.
    """
    others = [name for name in evaluations if name not in {task.name for task in tasks}]
    rows = [_row(task.label, task.name, evaluations.get(task.name)) for task in tasks]
    rows += [_row("", name, evaluations[name]) for name in others]
    titles = [*(task.title for task in tasks), *(_title(n, evaluations[n]) for n in others)]
    table = text_table(
        [each or model for each in _HEAD],
        [
            ("" if place and titles[place - 1] == title else title, *row)
            for place, (title, row) in enumerate(zip(titles, rows, strict=True))
        ],
        labels=3,
    )
    notes = "\n".join(
        textwrap.fill(note, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        for note in join_notes((*remarks, *_notes(tasks, evaluations, skipped)))
    )
    return f"{table}\n\n{notes}"


def _title(name: str, evaluation: Evaluation) -> str:
    """Return the title of a task that is not of the suite."""
    return f"{name} {evaluation.score(name).metric}, {evaluation.num_fewshot.get(name, 0)}-shot"


def _row(label: str, name: str, evaluation: Evaluation | None) -> tuple[str, ...]:
    if evaluation is None:
        return (label, "skipped", "", "", "", "")
    scores = [score for score in evaluation.scores if score.metric not in OBSERVED]
    main, *others = scores
    return (
        label,
        format_score(main),
        ", ".join(_named(score, main) for score in others),
        _share(evaluation, name, LANGUAGE_FIDELITY),
        _share(evaluation, name, TRUNCATED),
        str(main.n),
    )


def _named(score: TaskScore, main: TaskScore) -> str:
    name = score.metric if score.metric != main.metric else score.filter.removesuffix("-extract")
    return f"{name} {percent(score.value)}"


def _share(evaluation: Evaluation, task: str, metric: str) -> str:
    score = _observed(evaluation, task, metric)
    return "" if score is None else percent(score.value)


def _observed(evaluation: Evaluation, task: str, metric: str) -> TaskScore | None:
    named = (s for s in evaluation.scores if (s.task, s.metric) == (task, metric))
    return next(named, None)


def _notes(
    tasks: Sequence[Task], evaluations: Mapping[str, Evaluation], skipped: Mapping[str, str]
) -> Iterator[str]:
    level = next(
        (
            f", with {100 * score.interval.level:.0f} % intervals over items"
            for each in evaluations.values()
            for score in each.scores
            if score.interval is not None
        ),
        "",
    )
    yield f"Scores in percent{level}; BLEU and chrF++ on a scale of 0 to 100."
    yield from _repeat_notes(evaluations)
    for name, reason in skipped.items():
        if name not in evaluations:
            yield f"{name}: skipped: {reason}"
    done = [task for task in tasks if task.name in evaluations]
    for name in evaluations:
        if name not in {task.name for task in tasks}:
            yield from evaluations[name].notes
    if any(task.filters[:1] == ("strict-match",) for task in done):
        yield (
            "MGSM: the score counts the number after the answer phrase of the examples (strict); "
            "flexible takes the last number of the answer."
        )
    if any(_share(evaluations[task.name], task.name, LANGUAGE_FIDELITY) for task in done):
        yield "in language: share of answers in the language they should be in."
    if any(_share(evaluations[task.name], task.name, TRUNCATED) for task in done):
        yield "cut off: share of answers that ended at the token limit, not by themselves."
    for task in done:
        cut = _observed(evaluations[task.name], task.name, TRUNCATED)
        if cut is not None and cut.value > TRUNCATION_NOTED:
            answers = f"{percent(cut.value)} % of the answers"
            yield truncation_note(task.name, answers, "the token limit")
        yield from evaluations[task.name].notes
    for task in done:
        for score in evaluations[task.name].scores:
            if score.signature is not None:
                yield f"{task.name}: {score.metric} is {score.signature}"


def _repeat_notes(evaluations: Mapping[str, Evaluation]) -> Iterator[str]:
    """Yield what scores of several repeats are: their mean, and how much they differ."""
    for name, evaluation in evaluations.items():
        main = evaluation.scores[0]
        if main.deviation is not None:
            yield (
                f"{name}: mean of {main.repeats} samples of each item; standard deviation of the "
                f"score over them {percent(main.deviation)}; intervals count items and repeats as "
                "two levels."
            )
