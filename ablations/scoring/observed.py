"""Values of an item that are no metric of its task: truncation, and the language of the answer.

Also what a reader of the scores must know. Derived from what lm-eval logged and how the requests
went; asks no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.sandbox.programs import Isolation, describe_isolation
from ablations.scoring.language_id import is_in_language, why_not_judged
from ablations.scoring.outcomes import Key, Outcome

LANGUAGE_FIDELITY = "language_fidelity"
"""1 where the answer is in the language of the task, by `ablations.scoring.language_id`."""

TRUNCATED = "truncated"
"""1 where generation stopped at its token limit, so that the answer may lack its end."""

PROMPT_TRUNCATED = "prompt_truncated"
"""1 where the prompt did not fit the model's context."""

OBSERVED = {LANGUAGE_FIDELITY: True, TRUNCATED: False, PROMPT_TRUNCATED: False}
"""Name -> whether higher is better, in the order of the scores. They follow the task's metrics."""


def language_of(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (code, script) of the language a task's answers should be in, None for none.

    Args:
        config: of the task, as lm-eval reports it. Its metadata names both; a task that executes
            its answers asks for code, which is in no language.
    """
    metadata = config.get("metadata") or {}
    if config.get("output_type") != "generate_until" or config.get("unsafe_code"):
        return None
    if "language" not in metadata or "script" not in metadata:
        return None
    return str(metadata["language"]), str(metadata["script"])


def language_notes(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which tasks' answers cannot be judged by language, and why."""
    notes = []
    for task, config in configs.items():
        language = language_of(config)
        reason = None if language is None else why_not_judged(*language)
        if reason is not None:
            notes.append(f"{task}: no {LANGUAGE_FIDELITY}: {reason}")
    return notes


def prompt_notes(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which tasks ask in another language than the one they are about."""
    notes = []
    for task, config in configs.items():
        metadata = config.get("metadata") or {}
        language = metadata.get("language")
        prompt = metadata.get("prompt_language", language)
        if prompt != language:
            notes.append(f"{task}: prompts are in {prompt!r}, for want of a translation")
    return notes


def code_notes(configs: Mapping[str, Mapping[str, Any]], isolation: Isolation) -> list[str]:
    """Return how generated code was held, if any ran, and by which Python."""
    if not any(config.get("unsafe_code") for config in configs.values()):
        return []
    return [describe_isolation(isolation)]


class Observer:
    """Observes the items of one result of lm-eval."""

    def __init__(
        self,
        configs: Mapping[str, Mapping[str, Any]],
        outcomes: Mapping[Key, Sequence[Outcome]],
    ) -> None:
        """Take the tasks' configs and how the requests went; the latter may be empty."""
        self._outcomes = outcomes
        self._languages = {}
        for task, config in configs.items():
            language = language_of(config)
            if language is not None and why_not_judged(*language) is None:
                self._languages[task] = language
        self._judged: dict[tuple[str, str], bool] = {}

    def values(self, task: str, doc_id: int, responses: Sequence[object]) -> dict[str, float]:
        """Return name -> value of an item, for what can be observed of it."""
        values = {}
        texts = [each for each in responses if isinstance(each, str)]
        if task in self._languages and texts:
            values[LANGUAGE_FIDELITY] = float(all(self._fits(task, text) for text in texts))
        requests = self._outcomes.get((task, doc_id), ())
        ends = [each.is_truncated for each in requests if each.is_truncated is not None]
        if ends:
            values[TRUNCATED] = float(any(ends))
        if requests:
            values[PROMPT_TRUNCATED] = float(any(each.is_cut for each in requests))
        return values

    def _fits(self, task: str, text: str) -> bool:
        # Every filter of a task comes with the same answers.
        if (task, text) not in self._judged:
            self._judged[task, text] = is_in_language(text, *self._languages[task])
        return self._judged[task, text]


TRUNCATION_NOTED = 0.02
"""Share of truncated answers above which a note says that the score is too low for it."""
