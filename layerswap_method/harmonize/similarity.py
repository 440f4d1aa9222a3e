"""How similar two models of one shape are, step by step. Knows tensors and names; changes nothing.

Weights: the cosine of two tensors of one name, its mean over the layers. Hidden states: the cosine
of the residual streams at one token, its mean over tokens and layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from layerswap_method.tensor_names import split_layer

HIDDEN = "hidden states"

_PIECE = 1 << 22
"""Values that are widened to float64 at a time."""


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine of two tensors of one shape, as long vectors; 0 where one is zero."""
    product = first_square = second_square = 0.0
    pieces = (torch.split(each.flatten(), _PIECE) for each in (one, other))
    for left, right in zip(*pieces, strict=True):
        first, second = left.double(), right.double()
        product += float(first @ second)
        first_square += float(first @ first)
        second_square += float(second @ second)
    scale = math.sqrt(first_square) * math.sqrt(second_square)
    return product / scale if scale else 0.0


def mean_row_cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean cosine of two tensors' last axes, such as hidden states at the same token."""
    return float(torch.nn.functional.cosine_similarity(one, other, dim=-1).mean())


@dataclass
class Similarities:
    """Cosines by step and kind, collected a layer at a time."""

    steps: tuple[str, ...]
    """In the order of the columns."""

    found: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Kind -> step -> one number a layer."""

    def add(self, step: str, kind: str, value: float) -> None:
        """Add one number."""
        self.found.setdefault(kind, {}).setdefault(step, []).append(value)

    def add_weights(
        self, step: str, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]
    ) -> None:
        """Add the cosine of every pair of matrices; norms and biases are left out."""
        for name, tensor in ours.items():
            if tensor.ndim > 1:
                self.add(step, kind_of(name), cosine(tensor, theirs[name]))

    def means(self) -> dict[str, dict[str, float]]:
        """Return kind -> step -> mean over the layers, for the record."""
        return {
            kind: {step: sum(values) / len(values) for step, values in by_step.items()}
            for kind, by_step in self.found.items()
        }

    def lines(self) -> list[str]:
        """Return a table: a row a kind, a column a step."""
        widths = [max(len(step), 6) for step in self.steps]
        first = max(map(len, self.found))
        titles = (step.rjust(width) for step, width in zip(self.steps, widths, strict=True))
        lines = ["  ".join([" " * first, *titles])]
        for kind, by_step in self.means().items():
            cells = [
                (f"{by_step[step]:.3f}" if step in by_step else "-").rjust(width)
                for step, width in zip(self.steps, widths, strict=True)
            ]
            lines.append("  ".join([kind.ljust(first), *cells]))
        return lines


def kind_of(name: str) -> str:
    """Return the module of a weight, such as `q_proj`.

    >>> kind_of("model.layers.3.self_attn.q_proj.weight")
    'q_proj'
    """
    return split_layer(name)[1].split(".")[-2]
