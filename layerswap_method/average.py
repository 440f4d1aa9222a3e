"""Weighted averages: which inputs make a tensor, with which coefficients, and their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.plan import ROLES, Source

if TYPE_CHECKING:
    import torch


class Input(NamedTuple):
    """One model of a merge, or its tensor, with its `weight` (0 or more) within its role.

    `role` is None for a base that gives nothing but `base` tensors; an expert may be the base, too.
    """

    role: str | None = None
    weight: float = 1.0
    is_base: bool = False


class WeightedInputs(NamedTuple):
    """A weighted mean: positions of the inputs and coefficients, without those of 0."""

    inputs: tuple[int, ...]
    coefficients: tuple[float, ...]


def weighted_inputs(
    name: str,
    source: Source,
    inputs: Sequence[Input],
    side_weights: tuple[float, float] = (1.0, 1.0),
) -> WeightedInputs:
    """Return which of the inputs make the tensor `name`, task experts before language experts.

    With a_i, b_j the models' weights, A, B their sums and w_t, w_l the roles' `side_weights`, an
    average of both roles is (arXiv 2410.01335, Algorithm 1 line 8 over the soups of its Table 6)::

        (w_t * sum_i(a_i x_i)/A + w_l * sum_j(b_j y_j)/B) / (w_t + w_l)

    The coefficients are ``w_t a_i B/m`` and ``w_l b_j A/m``, with m the greatest common divisor of
    A and B where both are whole: whole weights give whole coefficients, and the only division is
    the last step. One role alone has the coefficients a_i.
    """
    if source == "base":
        position = next((i for i, given in enumerate(inputs) if given.is_base), None)
        if position is None:
            raise ValueError(f"{name}: the base model does not have this tensor")
        return WeightedInputs((position,), (1.0,))
    sides = {role: w for role, w in zip(ROLES, side_weights, strict=True) if w}
    if source != "average":
        sides = {source: 1.0}
    if not sides:
        raise ValueError("task_weight and language_weight are both 0: nothing to average")
    totals: dict[str, float] = {}
    for role, side in sides.items():
        weights = [given.weight for given in inputs if given.role == role]
        if not weights:
            raise ValueError(f"{name}: no {role} expert holds this tensor, but {source} needs it")
        if not all(map(math.isfinite, (sum(weights), side))) or min(*weights, side) < 0:
            raise ValueError("weights must be finite numbers, 0 or more, and so must be their sum")
        totals[role] = math.fsum(weights)
        if totals[role] == 0:
            raise ValueError("the weights of one role sum to 0: nothing to average")
    common = 1.0
    if len(sides) == 1:
        sides = dict.fromkeys(sides, 1.0)
    elif all(total == int(total) for total in totals.values()):
        common = float(math.gcd(*(int(total) for total in totals.values())))
    factors = {
        role: side * math.prod(total for other, total in totals.items() if other != role) / common
        for role, side in sides.items()
    }
    divisors = dict.fromkeys(totals, 1.0)
    if not all(1e-6 < factors[role] * totals[role] < 1e6 for role in sides):
        # Products that leave the range of floats: shares of each role in place of whole numbers.
        factors = {role: side / max(sides.values()) for role, side in sides.items()}
        divisors = totals
    chosen = [
        (position, factor * (given.weight / divisors[role]))
        for role, factor in factors.items()
        for position, given in enumerate(inputs)
        if given.role == role and given.weight
    ]
    return WeightedInputs(*(tuple(column) for column in zip(*chosen, strict=True)))


def weighted_average(
    tensors: Sequence[torch.Tensor],
    coefficients: Sequence[float],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``sum_k(coefficients[k] * tensors[k]) / sum_k(coefficients[k])``, rounded once.

    The sum runs in float32 (float64 where an input or the result is float64), value by value.
    `out_dtype` None takes the promoted one of the inputs. One tensor alone is returned itself (an
    alias, bit-identical), cast where its dtype differs.
    """
    import torch

    if not tensors:
        raise ValueError("nothing to average: no tensor with a coefficient above 0")
    if any(tensor.shape != tensors[0].shape for tensor in tensors):
        raise ValueError(f"shapes differ: {[tuple(tensor.shape) for tensor in tensors]}")
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    result = out_dtype or dtype
    if len(tensors) == 1:
        return tensors[0].to(result)
    compute = torch.float64 if torch.float64 in (dtype, result) else torch.float32
    (first, weight), *others = zip(tensors, coefficients, strict=True)
    total = first.to(compute, copy=True)
    if weight != 1:
        total.mul_(weight)
    for tensor, weight in others:
        wide = tensor.to(compute)
        total.add_(wide if weight == 1 else wide * weight)
    # By a tensor: for a plain number a GPU multiplies by the inverse, which rounds twice.
    total.div_(total.new_tensor(math.fsum(coefficients)))
    return total.to(result)
