"""What tells requests of lm-eval apart, and limits of answers that fit a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.engines.answers import AnswerFile

_LIMIT_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What a task may call the limit of an answer; lm-eval takes the first in this order."""


def asked_limit(options: Mapping[str, Any], default: int = 256) -> int:
    """Return a task's limit of an answer in tokens; lm-eval's own by default."""
    named = (options[name] for name in _LIMIT_NAMES if options.get(name) is not None)
    return int(next(named, default))


def within(asked: int, context: int, longest: int | None = None) -> int:
    """Return the limit of an answer: half of the context, or what the longest prompt leaves.

    Args:
        asked: the task's limit, in tokens.
        context: of the model, in tokens.
        longest: tokens of the longest prompt, where the user gave the limit.
    """
    room = context // 2 if longest is None else max(context // 2, context - longest)
    return min(asked, max(1, room))


def limited(options: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return options of generation with another limit."""
    others = {name: value for name, value in options.items() if name not in _LIMIT_NAMES}
    return {**others, "max_gen_toks": limit}


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
