"""Exact weighted averages of tensors. Knows weights and tensors; not layers, roles or files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from layerswap_method.algorithm.coefficients import float32_suffices

_CHUNK = 1 << 20
"""Elements averaged at a time: the float32 accumulator then stays in the processor's cache."""


def weighted_average(
    tensors: Sequence[torch.Tensor],
    coefficients: Sequence[float],
    divisor: float,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``sum_k(coefficients[k] * tensors[k]) / divisor``, rounded once.

    Tensors of coefficient 0 are left out. Where one tensor remains and its coefficient equals
    the divisor, that tensor itself is returned (an alias, bit-identical; cast only if
    `out_dtype` differs). Otherwise the sum is accumulated in float32, or in float64 where float32
    would round on the way (float64 inputs; float32 inputs, but for the plain average of two),
    divided once and rounded once to `out_dtype` (default: the promoted dtype of the inputs).

    Args:
        tensors: floating tensors of one shape on one device; not modified.
        coefficients: one a tensor, 0 or more.
        divisor: positive.
        out_dtype: dtype of the result.

    Raises:
        ValueError: on an empty sum, differing shapes, or lengths that differ.
    """
    if any(tensor.shape != tensors[0].shape for tensor in tensors):
        raise ValueError(f"shapes differ: {[tuple(tensor.shape) for tensor in tensors]}")
    terms = [(t, c) for t, c in zip(tensors, coefficients, strict=True) if c != 0]
    if not terms:
        raise ValueError("nothing to average: no tensor with a coefficient above 0")
    dtype = out_dtype
    if dtype is None:
        dtype = terms[0][0].dtype
        for tensor, _ in terms[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
    first, coefficient = terms[0]
    if len(terms) == 1 and coefficient == divisor:
        return first.to(dtype)
    names = [str(each).removeprefix("torch.") for each in (dtype, *(t.dtype for t, _ in terms))]
    wide = not float32_suffices(names[1:], [c for _, c in terms], divisor, names[0])
    compute = torch.float64 if wide else torch.float32
    result = torch.empty(first.shape, dtype=dtype, device=first.device)
    flat = result.view(-1)
    sources = [(tensor.reshape(-1), c) for tensor, c in terms]
    for start in range(0, flat.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        total = sources[0][0][piece].to(compute, copy=True)
        if sources[0][1] != 1:
            total.mul_(sources[0][1])
        for tensor, c in sources[1:]:
            total.add_(tensor[piece].to(compute), alpha=c)
        if divisor != 1:
            # A tensor: by a plain number, a GPU multiplies with the inverse, which rounds twice.
            total.div_(total.new_tensor(divisor))
        flat[piece] = _to_odd(total) if wide and dtype.itemsize < 4 else total
    return result


def _to_odd(total: torch.Tensor) -> torch.Tensor:
    """Return float64 values as float32 that round to 16 bits as the float64 values would.

    torch goes from float64 to 16 bits by way of float32 and so rounds twice: 1 + 2^-8 + 2^-40
    becomes 1 in bfloat16, not 1 + 2^-7. Rounding to odd (of the two float32 neighbours of an
    inexact value the one with the odd last bit) keeps the second rounding right.
    """
    nearest = total.to(torch.float32)
    exact = nearest.double() == total
    odd = (nearest.view(torch.int32) & 1).bool()
    towards = torch.where(nearest.double() < total, math.inf, -math.inf).to(torch.float32)
    return torch.where(exact | odd, nearest, torch.nextafter(nearest, towards))
