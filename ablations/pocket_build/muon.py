"""Muon: steps of matrices along their orthogonalised momentum. Knows tensors; no model.

Bases train in far fewer steps with it than with AdamW alone. In float32 throughout, unlike
`torch.optim.Muon`, which takes the powers in bfloat16: slow and coarse on most CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration: Jordan et al. 2024, kellerjordan.github.io/posts/muon."""
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices ``[number, rows, columns]`` with all singular values near 1."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Nesterov momentum, orthogonalised; matrices of one shape are treated together."""

    def __init__(self, matrices: Sequence[torch.nn.Parameter]) -> None:
        """Take the matrices to train; there may be none."""
        self._groups: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            self._groups.setdefault(matrix.shape, []).append(matrix)
        self._momenta = {
            shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix against its gradient by `rate`, more where it is taller than wide."""
        for shape, group in self._groups.items():
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            momentum = self._momenta[shape].mul_(MOMENTUM).add_(gradients)
            moves = orthogonalise(gradients + MOMENTUM * momentum)
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for matrix, move in zip(group, moves, strict=True):
                matrix.add_(move, alpha=-rate * scale)
