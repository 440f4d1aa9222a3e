"""Filters of a task as its file has them: which part of a response is the answer.

Those of MGSM and MGSM-Rev2 are whole here: the words before an answer are the `phrases` of
`languages.yml`; what a number is, and when two are equal, is in `numbers`. `python -m
tools.task_files` writes the filters into the task files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.tasks.numbers import NUMBER, answer_pattern


def answer_filter(name: str, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of ``filter_list``: one step over the first response to an item."""
    return {"name": name, "filter": [dict(step), {"function": "take_first"}]}


def first_match(pattern: str) -> dict[str, Any]:
    """Return the step that takes the first match of a regular expression with one group."""
    return {"function": "regex", "regex_pattern": pattern}


def last_match(pattern: str) -> dict[str, Any]:
    """Return the step that takes the last match."""
    return {**first_match(pattern), "group_select": -1}


LAST_NUMBER = answer_filter("flexible-extract", last_match(f"({NUMBER})"))
"""The filter that takes the last number of a response."""


def mgsm_filters(phrases: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries of ``filter_list`` for one language.

    Args:
        phrases: words that stand before an answer, such as "The answer is".
    """
    strict = answer_filter("strict-match", first_match(answer_pattern(*phrases)))
    return [strict, LAST_NUMBER]
