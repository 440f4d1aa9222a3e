"""Averages of 16-bit and 32-bit floats in numpy, which need no torch. Knows values, not files.

Importing torch costs seconds and most of 300 MB. Where float32 suffices
(`coefficients.float32_suffices`), numpy gives the very bits of `average.weighted_average`,
but for NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

STORED: dict[str, type[Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # its bits: numpy has no such dtype
}
"""torch dtype -> what numpy holds its values in."""

Stored = npt.NDArray[Any]
"""Values as they are stored."""

Values = npt.NDArray[np.float32]
"""Values as they are computed."""


def widened(stored: Stored, dtype: str) -> Values:
    """Return values of a dtype as float32, which holds them all; float32 itself is no copy."""
    if dtype == "bfloat16":
        bits = stored.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return stored.astype(np.float32, copy=False)


def narrowed(values: Values, dtype: str) -> Stored:
    """Return float32 values, none of them NaN, rounded to nearest even; float32 is no copy."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        odd = (bits >> 16) & 1
        odd += 0x7FFF
        odd += bits
        odd >>= 16
        return odd.astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(STORED[dtype], copy=False)


def cast(values: Values, dtype: str) -> Values:
    """Return values rounded to a dtype, as float32."""
    return values if dtype == "float32" else widened(narrowed(values, dtype), dtype)


def average(terms: Sequence[Values], coefficients: Sequence[float], divisor: float) -> Values:
    """Return ``sum_k(coefficients[k] * terms[k]) / divisor`` in float32.

    Args:
        terms: at least one, all of one shape; the first one's memory is used for the result.
        coefficients: one a term, not 0; every product must be exact.
        divisor: positive.
    """
    total = terms[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for position, (values, weight) in enumerate(zip(terms, coefficients, strict=True)):
            if weight != 1:
                values *= np.float32(weight)
            if position:
                total += values
        if divisor != 1:
            total /= np.float32(divisor)
    return total
