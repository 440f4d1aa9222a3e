"""Observations besides a task's metrics: truncation, language, why a score is 0; and notes.

They follow from lm-eval's log and the outcomes of the requests, which say whether a prompt fitted
and an answer ended.
Notes on tasks have the form ``TASK: text``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

from ablations.sandbox import Isolation
from ablations.scoring.evaluation import Evaluation, Sample
from ablations.scoring.language_id import FEWEST_LETTERS, is_in_language, why_not_judged
from ablations.tasks.catalog import language_of_metadata
from ablations.tasks.mbpp import describe_isolation
from ablations.tasks.names import language_script

LANGUAGE_FIDELITY = "language_fidelity"
"""1 where the answer is in the language of the task, by `ablations.scoring.language_id`; an item
whose answer is too short to say has none."""

TRUNCATED = "truncated"
"""1 where generation stopped at its token limit, so that the answer may lack its end."""

PROMPT_TRUNCATED = "prompt_truncated"
"""1 where the prompt did not fit the model's context."""

OBSERVED = {LANGUAGE_FIDELITY: True, TRUNCATED: False, PROMPT_TRUNCATED: False}
"""Name -> whether higher is better, in the order of the scores. They follow the task's metrics."""

TRUNCATION_NOTED = 0.02
"""Share of truncated answers above which a note says that the score is too low for it."""

EMPTY_NOTED = 0.02
"""Share of empty answers above which a note says how many there are."""


Key = tuple[str, int]
"""Task and ``doc_id`` of an item."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request: whether prompt and answer fitted."""

    is_cut: bool
    """Whether the prompt lost tokens on its left."""

    prompt_tokens: int
    """Length of the whole prompt (with the continuation, where one was scored)."""

    context_tokens: int
    """Length that the model takes, prompt and answer."""

    is_truncated: bool | None = None
    """Whether generation stopped at its limit; None where nothing was generated."""

    limit_tokens: int | None = None
    """The limit of the answer; None where nothing was generated."""

    wanted_tokens: int | None = None
    """The task's limit."""

    has_bos: bool | None = None
    """Whether a prompt that was cut begins with its BOS; None where it is whole."""

    is_thinking: bool | None = field(default=None, compare=False)
    """Whether generation stopped within the thinking, so that there is no answer; None where that
    is not known."""

    item: int | None = field(default=None, compare=False)
    """The ``doc_id`` of the first item with this prompt, for readers of stored answers."""


def language_of(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (code, script) of the language a task's answers should be in, None for none.

    Its metadata names the language, and the script where that is not the usual one; the script is
    empty where it is not known. A task that executes its answers wants code, which is in no
    language.
    """
    metadata = config.get("metadata") or {}
    if config.get("output_type") != "generate_until" or config.get("unsafe_code"):
        return None
    language = language_of_metadata(metadata)
    if language is None:
        return None
    return language, str(metadata.get("script") or language_script(language))


def task_notes(
    configs: Mapping[str, Mapping[str, Any]],
    samples: Iterable[Sample],
    isolation: Isolation | None,
) -> list[str]:
    """Return notes on the tasks.

    They say which answers cannot be judged by language and why, which tasks are in another language
    than the one they are about, and how generated code was held, if any ran: the programs of
    `samples` with a verdict by `isolation`, those of other tasks by nothing.
    """
    languages, prompts = [], []
    for task, config in configs.items():
        language, metadata = language_of(config), config.get("metadata") or {}
        if language is not None and (reason := why_not_judged(*language)) is not None:
            languages.append(f"{task}: no {LANGUAGE_FIDELITY}: {reason}")
        prompt = metadata.get("prompt_language", metadata.get("language"))
        if prompt != metadata.get("language"):
            prompts.append(f"{task}: prompts are in {prompt!r}, because there is no translation")
    sandboxed = {sample.task for sample in samples if sample.program is not None}
    if sandboxed and isolation is not None:
        prompts.append(describe_isolation(isolation))
    unheld = [task for task, c in configs.items() if c.get("unsafe_code") and task not in sandboxed]
    prompts += [
        f"{task}: generated code ran in the process of the evaluation, WITHOUT ISOLATION OR LIMITS"
        for task in unheld
    ]
    return [*languages, *prompts]


def observed_values(
    language: tuple[str, str] | None, outcomes: Sequence[Outcome], responses: Sequence[object]
) -> dict[str, float]:
    """Return name -> value of an item, for what can be observed of it.

    `language` has code and script that its answers are judged by; None judges none. `outcomes` is
    empty where it is not known how its requests went.
    """
    values = {}
    texts = [response for response in responses if isinstance(response, str)]
    if language is not None:
        verdicts = [is_in_language(text, *language) for text in texts]
        if any(verdict is not None for verdict in verdicts):
            values[LANGUAGE_FIDELITY] = float(False not in verdicts)
    if any(outcome.is_truncated is not None for outcome in outcomes):
        values[TRUNCATED] = float(any(outcome.is_truncated for outcome in outcomes))
    if outcomes:
        values[PROMPT_TRUNCATED] = float(any(outcome.is_cut for outcome in outcomes))
    return values


def notes_on(outcomes: Mapping[Key, Sequence[Outcome]]) -> Iterator[str]:
    """Yield notes on tasks whose prompts or answers did not fit the model's context."""
    by_task: dict[str, list[Outcome]] = {}
    for (task, _), outcomes_of_item in outcomes.items():
        by_task.setdefault(task, []).extend(outcomes_of_item)
    for task, task_outcomes in by_task.items():
        cut = [outcome for outcome in task_outcomes if outcome.is_cut]
        lowered = [
            outcome
            for outcome in task_outcomes
            if (outcome.limit_tokens or 0) < (outcome.wanted_tokens or 0)
        ]
        if cut:
            longest = max(outcome.prompt_tokens for outcome in cut)
            yield (
                f"{task}: {len(cut)} of {len(task_outcomes)} prompts (up to {longest} tokens) do "
                f"not fit the context of {cut[0].context_tokens} tokens with the answer and were "
                "cut from the left, so that their beginning is missing"
            )
        if lowered:
            yield (
                f"{task}: answers end at {lowered[0].limit_tokens} tokens and not at "
                f"{lowered[0].wanted_tokens}: the context of {lowered[0].context_tokens} tokens "
                "must hold the prompt, too"
            )


def empty_notes(samples: Iterable[Sample]) -> Iterator[str]:
    """Yield notes on tasks of which many answers are empty: often their prompt is at fault.

    Those that were cut off are none of them: their thinking had no end.
    """
    by_task: dict[str, dict[tuple[int, int], bool]] = {}
    for sample in samples:
        if all(isinstance(text, str) for text in sample.responses):
            is_empty_by_item = by_task.setdefault(sample.task, {})
            is_ended = not sample.values.get(TRUNCATED)
            is_empty_by_item[sample.doc_id, sample.repeat] = is_empty(sample) and is_ended
    for task, is_empty_by_item in by_task.items():
        number = len(is_empty_by_item)
        if (empty := sum(is_empty_by_item.values())) > EMPTY_NOTED * number:
            yield (
                f"{task}: {empty} of {number} answers are empty; compare its prompts in the "
                "folder of answers with those that the model was trained on"
            )


def short_notes(
    samples: Iterable[Sample], configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield notes on how many answers of a task are too short for a verdict on their language."""
    by_task: dict[str, dict[tuple[int, int], bool]] = {}
    for sample in samples:
        is_short = by_task.setdefault(sample.task, {})
        is_short[sample.doc_id, sample.repeat] = LANGUAGE_FIDELITY not in sample.values
    for task, is_short in by_task.items():
        language, short = language_of(configs[task]), sum(is_short.values())
        if language is not None and why_not_judged(*language) is None and short:
            yield (
                f"{task}: {short} of {len(is_short)} answers have fewer than {FEWEST_LETTERS} "
                f"letters and do not count in {LANGUAGE_FIDELITY}"
            )


def thinking_notes(outcomes: Iterable[tuple[Key, Sequence[Outcome]]]) -> Iterator[str]:
    """Yield notes on tasks of which answers ended within the thinking."""
    by_task: dict[str, list[Outcome]] = {}
    for (task, _), outcomes_of_item in outcomes:
        by_task.setdefault(task, []).extend(outcomes_of_item)
    for task, task_outcomes in by_task.items():
        if cut := [outcome for outcome in task_outcomes if outcome.is_thinking]:
            yield (
                f"{task}: the thinking of {len(cut)} of {len(task_outcomes)} answers was cut off "
                f"at {cut[0].limit_tokens} tokens; they count as no answer: raise "
                "gen_kwargs.max_gen_toks"
            )


def is_empty(sample: Sample) -> bool:
    """Return whether nothing but white space was generated for an item."""
    return not any(str(text).strip() for text in sample.responses)


def join_notes(notes: Iterable[str]) -> list[str]:
    """Return `notes` with those that say the same of several tasks as one, each once, in order."""
    tasks_by_text: dict[str, dict[str, None]] = {}
    for note in notes:
        task, colon, text = note.partition(": ")
        if not colon or " " in task:  # a sentence before the colon: no note on a task
            task, text = "", note
        tasks_by_text.setdefault(text, {})[task] = None
    joined = []
    for text, tasks in tasks_by_text.items():
        names = ", ".join(task for task in tasks if task)
        joined.append(f"{names}: {text}" if names else text)
    return joined


def zero_reasons(evaluation: Evaluation) -> dict[str, str]:
    """Return filter -> why its score is 0, where the answers show a plain reason."""
    reasons = {}
    for score in evaluation.scores:
        if score.value == 0 and score.is_share and score.higher_is_better:
            samples = [sample for sample in evaluation.samples if sample.filter == score.filter]
            reason = _zero_reason(samples, score.filter)
            if reason is not None:
                reasons[score.filter] = reason
    return reasons


def _zero_reason(samples: Sequence[Sample], filter_name: str) -> str | None:
    responses = [text for sample in samples for text in sample.responses]
    answers = [text for sample in samples for text in sample.answers]
    if not samples or not all(isinstance(text, str) for text in (*responses, *answers)):
        return None
    empty = sum(map(is_empty, samples))
    if empty == len(samples):
        return f"all {empty} answers are empty"
    if differing := sum(map(_differs_by_space, samples)):
        return (
            f"{differing} of {len(samples)} answers differ from their targets only in white space "
            "and count as wrong; add the filter remove_whitespace to the task"
        )
    if len(samples) > 1 and len({*answers}) == 1 and len({*responses}) > 1:
        empty_share = f", of which {empty} are empty" if empty else ""
        return (
            f"the filter {filter_name} finds no answer in any of the {len(samples)} responses"
            f"{empty_share} (it gives {shorten(repr(answers[0]), 60)} for all of them)"
        )
    return None


def _differs_by_space(sample: Sample) -> bool:
    answers = {str(answer) for answer in sample.answers}
    stripped = {answer.strip() for answer in answers}
    return sample.target not in answers and stripped == {sample.target.strip()}
