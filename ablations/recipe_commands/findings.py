"""What a check of a recipe finds: sentences with a level."""

from __future__ import annotations

from typing import Literal, NamedTuple

UNCHECKED = "its layers and shapes were not checked"
"""What a finding says of a model of which too little is known."""

Level = Literal["error", "warning", "note"]
"""`error`: the merge would fail or mean something else. `warning`: it may not be as meant.
`note`: something could not be checked, or the merge takes one of two."""


class Finding(NamedTuple):
    """One sentence of a check on a recipe."""

    level: Level
    message: str
