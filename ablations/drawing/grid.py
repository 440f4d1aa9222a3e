"""A grid of numbers, a row a layer and a column a module, and how its numbers are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Grid:
    """One number per layer and parameter: what a heatmap shows."""

    title: str
    """What the numbers are of, such as ``Swahili expert #1``."""

    columns: tuple[str, ...]
    """Parameters within a layer, such as ``self_attn.q_proj``, in the order of the figure."""

    values: tuple[tuple[float, ...], ...]
    """Per layer, layer 0 (embedding side) first, a number per column; NaN for no such parameter."""

    label: str
    """What the numbers are, with unit; stands at the colour bar."""

    note: str = ""
    """What is particular to this grid, such as its threshold; stands under the title."""

    limits: tuple[float, float] | None = None
    """Ends of the colour scale, (0, 1) for shares; None for 0 and the largest value."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.values)

    def array(self) -> Array:
        """Return the values, shape [layers, columns], layer 0 first."""
        return np.array(self.values, dtype=np.float64)


def scientific(value: float) -> str:
    """Return ``1.9×10⁻⁵`` for 0.000019, with two digits."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}×{power_of_ten(int(exponent))}"


def power_of_ten(exponent: int) -> str:
    """Return ``10⁻⁵`` for -5."""
    return f"10{str(exponent).translate(_RAISED)}"
