"""The filters of MGSM and MGSM-Rev2: which part of a response is the answer, in each language.

The words before the answer are the `phrases` of `languages.yml`; what a number is, and when two are
equal, is in `numbers`. `python -m tools.task_files` writes the filters into the task files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ablations.tasks.answer_filters import answer_filter, first_match, last_match
from ablations.tasks.numbers import NUMBER, answer_pattern

LAST_NUMBER = answer_filter("flexible-extract", last_match(f"({NUMBER})"))
"""The filter that takes the last number of a response."""


def mgsm_filters(phrases: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries of ``filter_list`` for one language.

    Args:
        phrases: words that stand before an answer, such as "The answer is".
    """
    strict = answer_filter("strict-match", first_match(answer_pattern(*phrases)))
    return [strict, LAST_NUMBER]
