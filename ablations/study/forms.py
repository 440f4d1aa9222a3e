"""What pydantic finds wrong with a file of a study, in a few words of ours. Opens no file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from layerswap_method.recipe.parameters import Words, problems

_GRIDS = {
    "vary": "vary is a grid (name: [value, ...]) or a list of settings (- {name: value, ...}); "
    "values are numbers, texts or true/false"
}


def form_problems(
    model: type[BaseModel], document: Any, error: ValidationError, whole: str
) -> tuple[str, ...]:
    """Return the errors of pydantic as text, each place once, without those of what holds another.

    Args:
        model: what was validated.
        document: the content of the file.
        error: what pydantic raised.
        whole: what `model` stands for, where an error is about all of it.
    """
    return tuple(problems(model, document, error, Words(whole, grids=_GRIDS)))
