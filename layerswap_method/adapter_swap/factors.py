"""Low-rank changes as two factors: their weighted sum, and the nearest one of a lower rank.

Knows matrices; not adapters, layers or files. Averaging the factors apart is not averaging the
changes: ``(B1 + B2)(A1 + A2)`` has the cross terms ``B1 A2`` and ``B2 A1``. The sum is exact when
the ranks are stacked::

    c1 B1 A1 + c2 B2 A2  ==  [c1 B1, c2 B2] @ [A1; A2]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Factors(NamedTuple):
    """One change: ``up @ down``."""

    down: torch.Tensor
    """rank x inputs (LoRA's A)."""

    up: torch.Tensor
    """outputs x rank (LoRA's B)."""

    @property
    def rank(self) -> int:
        """Return the number of rows of `down`."""
        return len(self.down)

    def squared_norm(self) -> float:
        """Return the squared Frobenius norm of the change, computed in float64 from the factors."""
        down, up = self.down.double(), self.up.double()
        return float(((up.T @ up) * (down @ down.T)).sum())


@dataclass(frozen=True)
class Cut:
    """A change at a lower rank."""

    factors: Factors
    """The nearest change of that rank in the Frobenius norm, float64."""

    squared_error: float
    """Squared Frobenius norm of what is missing."""


def stack(terms: Sequence[tuple[Factors, float]], dtype: torch.dtype) -> Factors:
    """Return ``sum_k(coefficients[k] * changes[k])``, whose rank is the sum of the ranks.

    A coefficient of 1 keeps the factors' bits; another multiplies `up` in float64, which is then
    rounded once.

    Args:
        terms: changes of one shape with their coefficients; at least one.
        dtype: of the result, in which the factors are exact.
    """
    return Factors(
        torch.cat([factors.down.to(dtype) for factors, _ in terms]),
        torch.cat([_scaled(factors.up, number).to(dtype) for factors, number in terms], dim=1),
    )


def is_exact(coefficient: float) -> bool:
    """Return whether a product with `coefficient` is exact in any float: a power of two."""
    return abs(math.frexp(coefficient)[0]) == 0.5


def cut_rank(factors: Factors, rank: int) -> Cut:
    """Return the best change of a lower rank: the largest singular values are kept.

    The matrix itself is never made: with ``up = Q R`` and ``down^T = P S`` it is
    ``Q (R S^T) P^T``, and only the small middle is decomposed (Eckart and Young, 1936).

    Args:
        factors: of a higher rank, finite.
        rank: 1 or more.
    """
    left, small_left = torch.linalg.qr(factors.up.double())
    right, small_right = torch.linalg.qr(factors.down.double().T)
    u, values, v = torch.linalg.svd(small_left @ small_right.T, full_matrices=False)
    root = values[:rank].sqrt()
    kept = Factors(root[:, None] * (v[:rank] @ right.T), left @ (u[:, :rank] * root))
    return Cut(kept, float(values[rank:].square().sum()))


def _scaled(up: torch.Tensor, number: float) -> torch.Tensor:
    return up if number == 1 else up.double() * number
