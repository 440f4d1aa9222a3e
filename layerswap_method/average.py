"""Weighted averages: which inputs make a tensor, with which coefficients, and their sum.

The weights are chosen in `methods/layer_swap.py` (written ones) and `methods/measured.py`
(measured ones).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from layerswap_method.layer_plan import ROLES, Source

if TYPE_CHECKING:
    import torch


class Input(NamedTuple):
    """One model of a merge, or its tensor, with its `weight` (0 or more) within its role.

    `scale` multiplies the model's part of every average after that; 1 unless it was measured.
    `role` is None for a base that gives nothing but `base` tensors; an expert may be the base, too.
    """

    role: str | None = None
    weight: float = 1.0
    is_base: bool = False
    scale: float = 1.0


class WeightedInputs(NamedTuple):
    """A weighted mean: positions of the inputs and coefficients, without those of 0."""

    inputs: tuple[int, ...]
    coefficients: tuple[float, ...]


def weighted_inputs(
    name: str,
    source: Source,
    inputs: Sequence[Input],
    average_weights: tuple[float, float] = (1.0, 1.0),
) -> WeightedInputs:
    """Return which of the inputs make the tensor `name`, task experts before language experts.

    With a_i, b_j the models' weights, A, B their sums, w_t, w_l the `average_weights` of the roles,
    and the scales 1, an average of both roles is (arXiv 2410.01335, Algorithm 1 line 8 over the
    soups of its Table 6)::

        (w_t * sum_i(a_i x_i)/A + w_l * sum_j(b_j y_j)/B) / (w_t + w_l)

    The coefficient of x_i is ``w_t a_i/A`` times its scale. Tensors of one role are its soup alone.
    """
    if source == "base":
        position = next((i for i, entry in enumerate(inputs) if entry.is_base), None)
        if position is None:
            raise ValueError(f"{name}: the base model does not have this tensor")
        return WeightedInputs((position,), (1.0,))
    sides = {source: 1.0}
    if source == "average":
        sides = {role: side for role, side in zip(ROLES, average_weights, strict=True) if side}
    shares: dict[int, float] = {}
    for role, side in sides.items():
        members = {i: entry for i, entry in enumerate(inputs) if entry.role == role}
        if not members:
            raise ValueError(f"{name}: no {role} expert holds this tensor, but {source} needs it")
        weights = [entry.weight for entry in members.values()]
        if not 0 < sum(weights) < math.inf:
            raise ValueError(f"the weights of the {role} experts sum to {sum(weights):g}")
        total = math.fsum(weights)
        for i, entry in members.items():
            # Nothing leaves the range of floats in this order, and the weight of one model is 1.
            shares[i] = side * (entry.weight / total) * entry.scale
    chosen = {i: share for i, share in shares.items() if share}
    return WeightedInputs(tuple(chosen), tuple(chosen.values()))


def weighted_average(
    tensors: Sequence[torch.Tensor],
    coefficients: Sequence[float],
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``sum_k(coefficients[k] * tensors[k]) / sum_k(coefficients[k])``, rounded once.

    The sum runs in float32 (float64 where an input or the result is float64), value by value.
    `out_dtype` None takes the promoted one of the inputs. One tensor alone is returned itself (an
    alias, bit-identical), cast where its dtype differs. It is for tensors in memory: those of
    mergekit's kernels and of adapters. `mix_reader` computes by the same rules from files, a piece
    of a tensor at a time.
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
    # The divisor is a tensor: a GPU multiplies by the inverse of a plain number, rounding twice.
    total.div_(total.new_tensor(math.fsum(coefficients)))
    return total.to(result)
