"""The base classes of values that are checked when they are made and never change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A pydantic model that cannot change and refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Described(Frozen):
    """A `Frozen` model whose JSON schema has the text below each field as its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)
