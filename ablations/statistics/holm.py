"""Holm's correction of several p values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for all of them together, in the order given.

    The k-th smallest of m is multiplied by m-k+1, never falls below the one before, and stops at
    1. Source: Holm 1979.
    """
    p, order = np.array(p_values), np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p))
    multiplied = p[order] * np.arange(len(p), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(multiplied, 1.0))
    return tuple(adjusted.tolist())
