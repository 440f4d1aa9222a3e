"""Floors: what a rule that does not read the question would score on a task.

A task's file states its own: ``metadata: {floor: {name: the last number, score: 0.12}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
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
