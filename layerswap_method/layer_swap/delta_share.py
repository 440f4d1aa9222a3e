"""Which expert changed a layer or module most: the rule of `placement: delta_share`. Numbers only.

Source: Shin and Hwang, "Layer-wise Swapping for Generalizable Multilingual Safety" (EACL 2026,
arXiv 2601.22620), as its authors' public code has it (github.com/00HS/layer-wise_swapping, commit
5a2a3ea, `layer_swap.py` and `module_swap.py`); their safety expert is the task expert here. The
equations in the paper itself were not open to us. The rule with the base as a third choice follows
the description of AraSwap on its model card (mariklolik228/AraSwap-Qwen3-8B-Adapters on the hub,
which compares Frobenius norms and asks for 15 %); its code was not open to us.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from layerswap_method.algorithm.plan import Source

DeltaUnit = Literal["layer", "module"]
"""What goes to one expert as a whole: a layer, or the attention or the MLP of a layer."""

THRESHOLD = 0.001
"""tau, as published."""

BLEND = 0.5
"""alpha, the task expert's share of a blend, as published."""


def unit_norm(relative_norms: Sequence[float], unit: DeltaUnit) -> float:
    """Return how far one unit moved, from ``r = ||W_delta|| / ||W_base||`` of each of its tensors.

    Frobenius norms; a tensor that is all zero in the base counts with ``||W_delta||``. For
    `layer` it is the sum of the r, for `module` the root of the sum of their squares: the
    authors' two programs differ in that, and both are followed.
    """
    return math.hypot(*relative_norms) if unit == "module" else math.fsum(relative_norms)


def delta_shares(norms: Sequence[float]) -> tuple[float, ...]:
    """Return each unit's share of one expert's whole change: ``norms[i] / sum(norms)``.

    The shares sum to one (the authors' code adds 1e-8 to the divisor; this does not).

    Args:
        norms: from `unit_norm`, one a unit; 0 or more.

    Raises:
        ValueError: for no unit, a negative or not finite norm, or norms that are all 0.
    """
    if not norms:
        raise ValueError("there is no unit to share a change among")
    for norm in norms:
        if not math.isfinite(norm) or norm < 0:
            raise ValueError(f"norm {norm} must be a finite number, 0 or more")
    total = math.fsum(norms)
    if total == 0:
        raise ValueError("every norm is 0: an expert that changed nothing has no shares")
    return tuple(norm / total for norm in norms)


def choose_sources(
    task_shares: Sequence[float], language_shares: Sequence[float], threshold: float = THRESHOLD
) -> tuple[Source, ...]:
    """Return the source of every unit, from the two experts' `delta_shares` of it.

    With d = task share - language share and tau = `threshold`::

        task       if d >  tau
        language   if d < -tau
        average    otherwise (a blend of alpha task and 1-alpha language)

    Raises:
        ValueError: for a negative or not finite threshold, or sides of different lengths.
    """
    if not math.isfinite(threshold) or threshold < 0:
        raise ValueError(f"threshold {threshold} must be a finite number, 0 or more")
    differences = [t - o for t, o in zip(task_shares, language_shares, strict=True)]
    return tuple(
        "task" if d > threshold else "language" if d < -threshold else "average"
        for d in differences
    )


def dominant_sources(
    task_shares: Sequence[float], language_shares: Sequence[float], dominance: float
) -> tuple[Source, ...]:
    """Return the source of every unit where neither expert is to have what both changed alike.

    With t and l the two experts' `delta_shares` of a unit and D = `dominance`::

        task       if t > (1 + D) l
        language   if l > (1 + D) t
        base       otherwise

    Shares take the place of AraSwap's norms, so that the expert that was trained longer does not
    get every unit.

    Raises:
        ValueError: for a negative or not finite dominance, or sides of different lengths.
    """
    if not math.isfinite(dominance) or dominance < 0:
        raise ValueError(f"dominance {dominance} must be a finite number, 0 or more")
    factor = 1 + dominance
    return tuple(
        "task" if t > factor * o else "language" if o > factor * t else "base"
        for t, o in zip(task_shares, language_shares, strict=True)
    )
