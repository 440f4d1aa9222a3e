"""How each request went: did its prompt fit, did the answer end or was it cut off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Task and ``doc_id`` of an item."""


@dataclass(frozen=True)
class Outcome:
    """How one request went."""

    is_cut: bool
    """Whether the prompt lost tokens on its left."""

    prompt_tokens: int
    """Length of the whole prompt (with the continuation, where one was scored)."""

    context_tokens: int
    """What the model takes, prompt and answer."""

    is_truncated: bool | None = None
    """Whether generation stopped at its limit; None where nothing was generated."""

    limit_tokens: int | None = None
    """The limit of the answer; None where nothing was generated."""

    asked_tokens: int | None = None
    """The task's limit."""

    item: int | None = field(default=None, compare=False)
    """The ``doc_id`` of the first item with this prompt, for readers of stored answers."""


def notes_on(found: Mapping[Key, Sequence[Outcome]]) -> Iterator[str]:
    """Yield per task what did not fit the model's context, in words."""
    by_task: dict[str, list[Outcome]] = {}
    for (task, _), items in found.items():
        by_task.setdefault(task, []).extend(items)
    for task, all_of in by_task.items():
        cut = [each for each in all_of if each.is_cut]
        lowered = [each for each in all_of if (each.limit_tokens or 0) < (each.asked_tokens or 0)]
        if cut:
            longest = max(each.prompt_tokens for each in cut)
            yield (
                f"{task}: {len(cut)} of {len(all_of)} prompts (up to {longest} tokens) do not fit "
                f"the context of {cut[0].context_tokens} tokens beside the answer and were cut "
                "from the left, so that examples are missing"
            )
        if lowered:
            yield (
                f"{task}: answers end at {lowered[0].limit_tokens} tokens and not at "
                f"{lowered[0].asked_tokens}: the context of {lowered[0].context_tokens} tokens "
                "must hold the prompt, too"
            )
