"""What was measured in this process, kept for the next recipe. Knows no files and no recipes.

A study asks for the same changes with many thresholds and weights, and each pass reads two whole
checkpoints. Keys hold the files' dates, so another file of the same name is measured anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_KEPT = 32
"""Results that are kept. The largest, the rows of an 8B model, take 5 MB."""

_known: dict[Hashable, Any] = {}

T = TypeVar("T")


def known(key: Hashable, measure: Callable[[], T]) -> T:
    """Return the result under `key`, measured where it is not known; the oldest one used goes.

    Args:
        key: what the result depends on, with the name of what is measured.
        measure: what makes it.
    """
    found: T = _known.pop(key) if key in _known else measure()
    _known[key] = found
    while len(_known) > _KEPT:
        del _known[next(iter(_known))]
    return found
