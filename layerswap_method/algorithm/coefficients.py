"""Which inputs make one tensor, with which coefficients. Knows roles and weights; no tensor.

The one home of that decision: the merge method asks it for mergekit, and a stream for an engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from layerswap_method.algorithm.plan import ROLES, Role, Source

_EXACT_FACTOR = 1 << 12
"""A 16-bit float times a whole number up to here is exact in float32."""

_NARROW = ("bfloat16", "float16")
"""torch dtypes of up to 11 significant bits."""


@dataclass(frozen=True)
class Input:
    """One model of a merge, or its tensor."""

    role: str | None = None
    """`task`, `language`, or None for a base that gives nothing but `base` tensors."""

    weight: float = 1.0
    """Within its role; 0 or more."""

    is_base: bool = False
    """Whether it is the base model; an expert may be that as well."""


@dataclass(frozen=True)
class Terms:
    """A tensor as ``sum_k(coefficients[k] * inputs[k]) / divisor``."""

    inputs: tuple[int, ...]
    """Positions in the list of inputs."""

    coefficients: tuple[float, ...]
    """One an input, 0 or more."""

    divisor: float
    """Positive."""


def needed_roles(source: Source, side_weights: tuple[float, float]) -> tuple[Role, ...]:
    """Return the roles whose tensors `source` reads; () for the base.

    Args:
        source: where the tensor comes from.
        side_weights: of (task, language) in an average of the two.
    """
    if source == "base":
        return ()
    if source != "average":
        return (source,)
    return tuple(role for role, weight in zip(ROLES, side_weights, strict=True) if weight != 0)


def source_terms(
    name: str,
    source: Source,
    inputs: Sequence[Input],
    side_weights: tuple[float, float] = (1.0, 1.0),
) -> Terms:
    """Return which of the inputs make the tensor `name`, task experts before language experts.

    Args:
        name: for messages.
        source: where the tensor comes from.
        inputs: what there is to make it of.
        side_weights: of (task, language) in an average of the two.

    Raises:
        ValueError: if an input that the source needs is missing, or for weights that give no
            average (`mix_coefficients`).
    """
    if source == "base":
        for i, given in enumerate(inputs):
            if given.is_base:
                return Terms((i,), (1.0,), 1.0)
        raise ValueError(f"{name}: the base model does not have this tensor")
    sides = needed_roles(source, side_weights)
    chosen = {
        role: [i for i, given in enumerate(inputs) if role in sides and given.role == role]
        for role in ROLES
    }
    for role in sides:
        if not chosen[role]:
            raise ValueError(f"{name}: no {role} expert holds this tensor, but {source} needs it")
    weights = {role: [inputs[i].weight for i in chosen[role]] for role in ROLES}
    coefficients, divisor = mix_coefficients(weights["task"], weights["language"], *side_weights)
    order = tuple(i for role in ROLES for i in chosen[role])
    return Terms(order, tuple(coefficients), divisor)


_EXACT_LIMIT = 1 << 24
"""Integers up to here are exact in float32."""


def mix_coefficients(
    task_weights: Sequence[float],
    language_weights: Sequence[float],
    task_weight: float = 1.0,
    language_weight: float = 1.0,
) -> tuple[list[float], float]:
    """Return coefficients c and one divisor D of the average of two soups.

    With a_i, b_j the models' weights, A, B their sums and w_t, w_l the experts' weights::

        (w_t * sum_i(a_i x_i)/A + w_l * sum_j(b_j y_j)/B) / (w_t + w_l)  ==  sum_k(c_k z_k) / D

    (z: the task models, then the language models; arXiv 2410.01335, Algorithm 1 line 8 over the
    soups of its Table 6). The weights are read as the decimals that were written (0.3 is 3/10),
    so c and D are whole numbers, and the only division is the last step: weights 1/3 and 2/3 are
    not representable, 1, 2 and a division by 3 are. Where the whole numbers would pass 2^24, c
    are plain floats and D is their sum. One side may be empty: then it is the other's soup.

    Raises:
        ValueError: if a weight is negative or not finite, or the weights of a side sum to 0.
    """
    sides = [(task_weights, task_weight), (language_weights, language_weight)]
    total = as_written(task_weight) + as_written(language_weight)
    both = bool(task_weights) and bool(language_weights)
    if both and total == 0:
        raise ValueError("task_weight and language_weight are both 0: nothing to average")
    shares: list[Fraction] = []
    for weights, side in sides:
        fractions = [as_written(weight) for weight in weights]
        if not fractions:
            continue
        if sum(fractions) == 0:
            raise ValueError("the weights of one role sum to 0: nothing to average")
        share = as_written(side) / total if both else Fraction(1)
        shares.extend(share * fraction / sum(fractions) for fraction in fractions)
    divisor = math.lcm(*(share.denominator for share in shares)) if shares else 1
    if divisor < _EXACT_LIMIT:
        return [float(share * divisor) for share in shares], float(divisor)
    floats = [float(share) for share in shares]
    return floats, math.fsum(floats)


def as_written(weight: float) -> Fraction:
    """Return a weight as the decimal that is written: 0.3 is 3/10.

    Raises:
        ValueError: if it is negative or not finite.
    """
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"weight {weight} must be a finite number, 0 or more")
    return Fraction(repr(float(weight)))


def float32_suffices(
    dtypes: Sequence[str], coefficients: Sequence[float], divisor: float, out_dtype: str
) -> bool:
    """Return whether ``sum_k(c_k * x_k) / divisor`` in float32 rounds no earlier than in float64.

    Each product is then exact, so a sum has the same bits with and without fused operations.

    Args:
        dtypes: torch names of the dtypes of the x.
        coefficients: one an x.
        divisor: positive.
        out_dtype: torch name of the dtype of the result.
    """
    if "float64" in (out_dtype, *dtypes):
        return False
    if all(dtype in _NARROW for dtype in dtypes):
        return all(c == int(c) and c <= _EXACT_FACTOR for c in coefficients)
    # Powers of two shift; of two float32 terms the sum is then the only step that rounds.
    shifts = all(math.frexp(value)[0] == 0.5 for value in (*coefficients, divisor))
    return shifts and len(dtypes) == 2 and out_dtype == "float32"
