"""Evaluations that went wrong without an error. Knows records; judges no model.

A task on which every model scores 0 compares nothing, and often its prompt or its filter is at
fault. That has to be said before any score is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from ablations.runner.records import CellRecord, Run
from ablations.scoring.observed import PROMPT_TRUNCATED
from ablations.scoring.records import Sample, TaskScore
from ablations.statistics.as_text import percent

MOST_CUT = 0.5
"""Share of cut prompts from which the scores of a task are not those of the task."""

_LONGEST = 60
"""Letters of an answer that a sentence quotes."""


def evaluation_problems(run: Run) -> tuple[str, ...]:
    """Return what is wrong with the evaluation itself, a text a problem: what, where, what to do.

    Empty where nothing is. Looked for are prompts that did not fit the model, filters that find no
    answer, empty answers, and tasks on which every model scores 0.
    """
    tasks = dict.fromkeys(score.task for cell in run.cells for score in cell.scores)
    found = []
    for task in tasks:
        cells = [cell for cell in run.cells if any(s.task == task for s in cell.scores)]
        found += [
            text
            for text in (_cut(task, cells), _zero(run, task, cells, run.study.report.metric))
            if text is not None
        ]
    return tuple(found)


def _cut(task: str, cells: Sequence[CellRecord]) -> str | None:
    shares = [
        (score.value, cell)
        for cell in cells
        for score in cell.scores
        if (score.task, score.metric) == (task, PROMPT_TRUNCATED) and score.value >= MOST_CUT
    ]
    if not shares:
        return None
    worst = max(share for share, _ in shares)
    return (
        f"{task}: up to {percent(worst)} % of the prompts were too long for the model and lost "
        f"their beginning{_where([cell for _, cell in shares], cells)}. The scores are not those "
        "of the task. Raise max_model_len, or use a model with a longer context or a task with "
        "fewer examples."
    )


def _zero(run: Run, task: str, cells: Sequence[CellRecord], metric: str | None) -> str | None:
    """Return what is wrong where scores are 0; None where only some are, for no plain reason."""
    zeros = []
    for cell in cells:
        score = _shown(cell, task, metric)
        if score is not None and score.higher_is_better and score.is_share and score.value == 0:
            zeros.append((cell, score))
    if not zeros:
        return None
    reasons = {cell.label: _reason(_samples(cell, score), score) for cell, score in zeros}
    plain = [(cell, score) for cell, score in zeros if reasons[cell.label]]
    if len(zeros) < len(cells) and not plain:
        return None
    told = plain if plain and len(plain) < len(zeros) < len(cells) else zeros
    first, score = (plain or zeros)[0]
    reason = reasons[first.label] or (
        f"every answer is wrong ({score.metric} is 0 on all {score.n} items)"
    )
    record = next(each for each in first.tasks if _has(each.evaluation.scores, task))
    path = record.folder / "samples.jsonl"
    if path.is_relative_to(run.path):
        path = path.relative_to(run.path)
    return (
        f"{task}: {reason}{_where([cell for cell, _ in told], cells)}. "
        f"{_better(cells, task, score)}Nothing can be concluded from this score. Compare prompts, "
        f"responses and answers in {path} with the task file."
    )


def _reason(samples: Sequence[Sample], score: TaskScore) -> str | None:
    responses = [each for sample in samples for each in sample.responses]
    answers = [each for sample in samples for each in sample.answers]
    if not samples or not all(isinstance(each, str) for each in (*responses, *answers)):
        return None
    if not any(str(each).strip() for each in responses):
        return f"all {len(samples)} answers are empty"
    spaced = sum(map(_differs_by_space, samples))
    if spaced:
        return (
            f"{spaced} of {len(samples)} answers equal their targets but for white space and count "
            "as wrong; add the filter remove_whitespace to the task"
        )
    if len(samples) > 1 and len({*answers}) == 1 and len({*responses}) > 1:
        said = str(answers[0])
        said = said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
        return (
            f"the filter {score.filter} finds no answer in any of the {len(samples)} responses "
            f"(it gives {said!r} for all of them)"
        )
    return None


def _differs_by_space(sample: Sample) -> bool:
    target, said = str(sample.target), {str(each) for each in sample.answers}
    return target not in said and {each.strip() for each in said} == {target.strip()}


def _better(cells: Sequence[CellRecord], task: str, shown: TaskScore) -> str:
    """Return what another filter finds, as a sentence; empty where none finds more."""
    best = max(
        (
            score
            for cell in cells
            for score in cell.scores
            if (score.task, score.metric) == (task, shown.metric) and score.filter != shown.filter
        ),
        key=lambda score: score.value,
        default=None,
    )
    if best is None or best.value == 0:
        return ""
    return f"The filter {best.filter} gives up to {percent(best.value)} %. "


def _shown(cell: CellRecord, task: str, metric: str | None) -> TaskScore | None:
    scores = [score for score in cell.scores if score.task == task]
    named = [score for score in scores if score.metric == metric]
    return next(iter(named or scores), None)


def _samples(cell: CellRecord, score: TaskScore) -> list[Sample]:
    record = next(each for each in cell.tasks if _has(each.evaluation.scores, score.task))
    found = (each for each in record.samples() if each.task == score.task)
    return [each for each in found if each.filter == score.filter]


def _has(scores: Sequence[TaskScore], task: str) -> bool:
    return any(score.task == task for score in scores)


def _where(some: Sequence[CellRecord], cells: Sequence[CellRecord]) -> str:
    """Return in which cells; empty for a single cell of one."""
    if len(cells) == 1:
        return ""
    if len(some) == len(cells):
        return f", in all {len(cells)} cells"
    return f", in {len(some)} of {len(cells)} cells (the first is {some[0].label})"
