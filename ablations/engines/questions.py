"""What an engine is asked: requests of lm-eval with limits that fit, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ablations.engines.answers import AnswerFile
from ablations.scoring.outcomes import Outcome

_LIMIT_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What a task may call the limit of an answer; lm-eval takes the first in this order."""


class Question(NamedTuple):
    """A request that an engine is to answer with text."""

    request: Any
    key: str
    outcome: Outcome
    """How it goes, but for its end."""

    tokens: int
    """Hash of the prompt's tokens."""

    @property
    def prompt(self) -> str:
        """The text that is sent."""
        return str(self.request.args[0])


def answer_limit(
    options: Mapping[str, Any],
    context: int | None,
    default: int = 256,
    longest: int | None = None,
) -> int:
    """Return how many tokens an answer may take.

    Args:
        options: what the task, or the user in its place, says of generation.
        context: of the model, in tokens; None where that is not known.
        default: lm-eval's own limit.
        longest: tokens of the longest prompt, where the user gave the limit.
    """
    asked = asked_limit(options, default)
    return asked if context is None else within(asked, context, longest)


def within(asked: int, context: int, longest: int | None = None) -> int:
    """Return the limit of an answer: half of the context, or what the longest prompt leaves."""
    room = context // 2 if longest is None else max(context // 2, context - longest)
    return min(asked, max(1, room))


def rounds(prompts: Sequence[str]) -> list[list[int]]:
    """Return indices so that no prompt comes twice in a round; nearly always one round."""
    found: list[list[int]] = []
    seen: dict[str, int] = {}
    for place, prompt in enumerate(prompts):
        number = seen[prompt] = seen.get(prompt, -1) + 1
        if number == len(found):
            found.append([])
        found[number].append(place)
    return found


def asked_limit(options: Mapping[str, Any], default: int) -> int:
    """Return the limit of an answer that a task asks for, in tokens."""
    named = (options[name] for name in _LIMIT_NAMES if options.get(name) is not None)
    return int(next(named, default))


def limited(options: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return options of generation with another limit."""
    others = {name: value for name, value in options.items() if name not in _LIMIT_NAMES}
    return {**others, "max_gen_toks": limit}


def generation_key(answers: AnswerFile | None, request: Any, draw: str) -> str:
    """Return the key of a request for text; `draw` is of `draw_of`."""
    prompt, options = request.args
    sampled = draw if is_sampled(options) else None
    return "" if answers is None else answers.key("generate", prompt, options, sampled)


def likelihood_key(answers: AnswerFile | None, request: Any) -> str:
    """Return the key of a request for a log-likelihood."""
    return "" if answers is None else answers.key("loglikelihood", *request.args)


def is_sampled(options: Mapping[str, Any]) -> bool:
    """Return whether answers are drawn, by the options of generation."""
    drawn = options.get("do_sample")
    return (bool(options.get("temperature")) and drawn is not False) or bool(drawn)


def draw_of(seed: str, request: Any, number: int) -> str:
    """Return what tells one drawn answer from another.

    Args:
        seed: of the run and the repeat.
        request: of lm-eval.
        number: of the round, where one prompt comes several times.
    """
    return f"{seed} {request.task_name} {request.doc_id} {request.idx} {number}"
