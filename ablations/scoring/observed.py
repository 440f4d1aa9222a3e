"""Values of an item that are no metric of its task: truncation, and the language of the answer.

Derived from what lm-eval logged and how the requests went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.sandbox import Isolation
from ablations.scoring.language_id import is_in_language, why_not_judged
from ablations.scoring.outcomes import Key, Outcome
from ablations.tasks.mbpp import describe_isolation

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


def task_notes(configs: Mapping[str, Mapping[str, Any]], isolation: Isolation) -> list[str]:
    """Return what a reader must know of the tasks.

    Which answers cannot be judged by language and why, which tasks ask in another language than
    the one they are about, and how generated code was held, if any ran.
    """
    languages, prompts = [], []
    for task, config in configs.items():
        spoken, metadata = language_of(config), config.get("metadata") or {}
        if spoken is not None and (reason := why_not_judged(*spoken)) is not None:
            languages.append(f"{task}: no {LANGUAGE_FIDELITY}: {reason}")
        prompt = metadata.get("prompt_language", metadata.get("language"))
        if prompt != metadata.get("language"):
            prompts.append(f"{task}: prompts are in {prompt!r}, because there is no translation")
    ran = any(config.get("unsafe_code") for config in configs.values())
    return [*languages, *prompts, *([describe_isolation(isolation)] if ran else [])]


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

    def values(self, task: str, doc_id: int, responses: Sequence[object]) -> dict[str, float]:
        """Return name -> value of an item, for what can be observed of it."""
        values = {}
        texts = [each for each in responses if isinstance(each, str)]
        if task in self._languages and texts:
            language = self._languages[task]
            values[LANGUAGE_FIDELITY] = float(
                all(is_in_language(each, *language) for each in texts)
            )
        requests = self._outcomes.get((task, doc_id), ())
        ends = [each.is_truncated for each in requests if each.is_truncated is not None]
        if ends:
            values[TRUNCATED] = float(any(ends))
        if requests:
            values[PROMPT_TRUNCATED] = float(any(each.is_cut for each in requests))
        return values


TRUNCATION_NOTED = 0.02
"""Share of truncated answers above which a note says that the score is too low for it."""
