"""The base classes of values that are checked when they are made and never change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that cannot change and knows no field it was not declared with."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Described(Frozen):
    """One whose JSON schema repeats what is written below each field."""

    model_config = ConfigDict(use_attribute_docstrings=True)
