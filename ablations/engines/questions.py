"""Questions to a model, what makes two of them one, and the room that an answer to one has."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ablations.machine.fingerprint import fingerprint_of
from ablations.scoring.protocol import EvaluationProtocol

_LIMIT_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the limit of an answer in tasks; lm-eval takes the first in this order."""


@dataclass(frozen=True)
class Question:
    """A request of lm-eval."""

    task: str
    doc_id: int
    """Number of its item in the task."""

    prompt: str
    asked: Mapping[str, Any] | str
    """Settings of generation, or the continuation whose likelihood is wanted."""

    key: str
    """Hash under which its answer is stored; see `question_key`."""

    draw: str | None = None
    """Which of the sampled answers to its prompt it wants; None where nothing is drawn."""


def hash_settings(protocol: EvaluationProtocol, settings: Mapping[str, Any]) -> str:
    """Return a hash of what all questions of a run have in common besides the weights.

    Args:
        protocol: of the request.
        settings: the engine, its options, context and versions.
    """
    return fingerprint_of(protocol=protocol.overrides(), **settings)


def read_questions(
    kind: Literal["generate", "loglikelihood"],
    requests: Sequence[Any],
    settings_hash: str | None,
    sample_seed: str,
) -> list[Question]:
    """Return the questions of lm-eval's requests, with equal keys where two of them are one.

    Args:
        kind: what is wanted.
        requests: of lm-eval, all of that kind.
        settings_hash: of `hash_settings`; None where no answers are stored.
        sample_seed: seed and number of the repeat.
    """
    earlier = Counter[str]()
    questions = []
    common = (kind,) if settings_hash is None else (settings_hash, kind)
    for request in requests:
        prompt, asked = request.args
        draw, drawn = None, tuple[str | None, ...]()
        if kind == "generate":
            if is_sampled(asked):
                item = f"{request.task_name} {request.doc_id} {request.idx}"
                draw = f"{sample_seed} {item} {earlier[prompt]}"
            drawn = (draw,)
        earlier[prompt] += 1
        key = question_key(*common, prompt, asked, *drawn)
        questions.append(Question(request.task_name, int(request.doc_id), prompt, asked, key, draw))
    return questions


def question_key(*parts: Any) -> str:
    """Return the hash under which an answer is stored, in the file of its model and task.

    This is all that makes two questions one: the engine, whether text or a likelihood is wanted,
    the prompt, and the settings of generation or the continuation. Where the answer is drawn, the
    seed, the item and how many equal prompts came before are part of it.
    """
    # What JSON does not know goes in as its `repr`.
    text = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_sampled(options: Mapping[str, Any]) -> bool:
    """Return whether answers are drawn, by the options of generation."""
    drawn = options.get("do_sample")
    return (bool(options.get("temperature")) and drawn is not False) or bool(drawn)


def task_limit(options: Mapping[str, Any], default: int = 256) -> int:
    """Return a task's limit of an answer in tokens; lm-eval's own by default."""
    named = (options[name] for name in _LIMIT_NAMES if options.get(name) is not None)
    return int(float(next(named, default)))


def with_limit(options: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return options of generation with another limit of the answer, in tokens."""
    others = {name: value for name, value in options.items() if name not in _LIMIT_NAMES}
    return {**others, "max_gen_toks": limit}


def fitting_limit(wanted: int, context: int, longest: int | None = None) -> int:
    """Return the limit of an answer: half of the context, or what the longest prompt leaves.

    Args:
        wanted: the task's limit, in tokens.
        context: of the model, in tokens.
        longest: tokens of the longest prompt, where the user gave the limit.
    """
    room = context // 2 if longest is None else max(context // 2, context - longest)
    return min(wanted, max(1, room))
