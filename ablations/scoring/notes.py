"""What a reader of scores must know: notes on tasks (``TASK: text``), and why a score is 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import shorten

from ablations.scoring.records import Evaluation, Sample


def join_notes(notes: Iterable[str]) -> list[str]:
    """Return `notes` with those that say the same of several tasks as one, each once, in order."""
    tasks: dict[str, dict[str, None]] = {}
    for note in notes:
        task, colon, text = note.partition(": ")
        # What begins with a sentence is no note on a task.
        key, named = (text, task) if colon and " " not in task else (note, "")
        tasks.setdefault(key, {})[named] = None
    return [
        f"{', '.join(name for name in named if name)}: {text}" if any(named) else text
        for text, named in tasks.items()
    ]


def truncation_note(task: str, answers: str, limit: str) -> str:
    """Return that `answers`, such as ``12.0 % of the answers``, were cut off at `limit`."""
    return f"{task}: {answers} were cut off at {limit}: its score may be too low by that much."


def zero_reasons(evaluation: Evaluation) -> dict[str, str]:
    """Return filter -> why its score is 0, where the answers show a plain reason."""
    zero = [
        score.filter
        for score in evaluation.scores
        if score.value == 0 and score.is_share and score.higher_is_better
    ]
    reasons = {
        name: _zero_reason([each for each in evaluation.samples if each.filter == name], name)
        for name in zero
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _zero_reason(samples: Sequence[Sample], filter_name: str) -> str | None:
    responses = [each for sample in samples for each in sample.responses]
    answers = [each for sample in samples for each in sample.answers]
    if not samples or not all(isinstance(each, str) for each in (*responses, *answers)):
        return None
    if not any(str(each).strip() for each in responses):
        return f"all {len(samples)} answers are empty"
    if spaced := sum(map(_differs_by_space, samples)):
        return (
            f"{spaced} of {len(samples)} answers equal their targets but for white space and count "
            "as wrong; add the filter remove_whitespace to the task"
        )
    if len(samples) > 1 and len({*answers}) == 1 and len({*responses}) > 1:
        return (
            f"the filter {filter_name} finds no answer in any of the {len(samples)} responses "
            f"(it gives {shorten(repr(answers[0]), 60)} for all of them)"
        )
    return None


def _differs_by_space(sample: Sample) -> bool:
    answers = {str(each) for each in sample.answers}
    return sample.target not in answers and {x.strip() for x in answers} == {sample.target.strip()}
