"""Filters of a task as its file has them: which part of a response is the answer.

Those of MGSM are in `mgsm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answer_filter(name: str, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``filter_list``: one step over the first response to an item."""
    return {"name": name, "filter": [dict(step), {"function": "take_first"}]}


def first_match(pattern: str) -> dict[str, Any]:
    """Return the step that takes the first match of a regular expression with one group."""
    return {"function": "regex", "regex_pattern": pattern}


def last_match(pattern: str) -> dict[str, Any]:
    """Return the step that takes the last match."""
    return {**first_match(pattern), "group_select": -1}
