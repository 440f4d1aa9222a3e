"""Floors: what a rule that does not read the question would score on a task.

A task's file states its own: ``metadata: {floor: {name: the last number, score: 0.12}}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, StrictStr, ValidationError

from layerswap_method.errors import InputError
from layerswap_method.frozen import Described
from layerswap_method.recipe.problems import problems


class Floor(Described):
    """What a rule that does not read the question would score on a task."""

    name: StrictStr = Field(min_length=1)
    """The rule, such as ``the most frequent answer``."""

    score: float = Field(strict=True, ge=0, le=1)
    """Its score by the task's first metric, as a share of 1."""


def _by_size(numbers: Sequence[int]) -> int:
    small, large = sorted(numbers[:2])
    return small * large if small <= 9 and large <= 12 else sum(numbers)


_RULES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "add all numbers": sum,
    "add the first two numbers": lambda numbers: numbers[0] + numbers[1],
    "subtract the second number": lambda numbers: numbers[0] - numbers[1],
    "multiply the first two numbers": lambda numbers: numbers[0] * numbers[1],
    "multiply small numbers and add others": _by_size,
}
"""Name -> what it answers to the numbers of a text, in their order; there are two or more."""


def word_blind_floor(items: Sequence[Sequence[tuple[str, int]]]) -> Floor:
    """Return the best rule that sees nothing but the numbers of a text.

    Args:
        items: of a task; each one or more texts with their answers, all of which must be right.
    """

    def score(rule: Callable[[Sequence[int]], int]) -> float:
        right = [
            all(rule([int(n) for n in re.findall(r"\d+", text)]) == answer for text, answer in item)
            for item in items
        ]
        return sum(right) / len(right)

    name = max(_RULES, key=lambda each: score(_RULES[each]))
    return Floor(name=name, score=score(_RULES[name]))


def floor_of(metadata: Any) -> Floor | None:
    """Return the floor that the metadata of a task state; None where they state none.

    Raises:
        InputError: for a floor without a name, or with a score that is no number from 0 to 1.
    """
    if not isinstance(metadata, Mapping) or "floor" not in metadata:
        return None
    try:
        return Floor.model_validate(metadata["floor"])
    except ValidationError as error:
        found = problems(Floor, metadata["floor"], error)
        raise InputError(f"metadata: floor: {'; '.join(found)}") from error
