"""The weights of `weighting: magnitude`, from the experts' mean changes. Knows numbers only.

"The resulting weight of each expert is the inverse of the average MAV for all rows in all
W_delta for that expert" (arXiv 2410.01335, section 5.1; offered for transition zones in section
4.2). What is averaged: all rows of all tensors of the expert's checkpoint pooled, each row once,
whatever the size of its tensor; see `layerswap_method.deltas.rows` for what a row is.

Weights that a recipe gives multiply it. With several experts in a role, each expert's share of
the uniform average is multiplied by its inverse, so a role's own weight becomes the mean of its
experts' and twelve language experts do not outvote one task expert by their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from layerswap_method.algorithm.coefficients import as_written
from layerswap_method.algorithm.plan import ROLES
from layerswap_method.layer_swap.spec import LayerSwapSpec

_DIGITS = 6
"""Significant digits of an inverse: what is printed is what is used, and the last bits of a sum
(which hang on the machine and its threads) do not reach the merged weights."""


@dataclass(frozen=True)
class Weights:
    """The weights of a recipe, as `layerswap_method.algorithm.coefficients` takes them."""

    models: tuple[float, ...]
    """Of every input within its role, in the order of the inputs."""

    task: float
    """w_task in every average of the two experts."""

    language: float
    """w_lang in every average of the two experts."""

    def applied_to(self, spec: LayerSwapSpec) -> LayerSwapSpec:
        """Return the spec with these weights, which leave nothing to be measured."""
        weights = {"task_weight": self.task, "language_weight": self.language}
        return spec.model_copy(update={**weights, "weighting": "uniform"})


def inverse_mav(mav: float) -> float:
    """Return ``1 / mav`` to six significant digits.

    Args:
        mav: the mean of the MAV of all rows of one expert's change; same unit as the weights.

    Raises:
        ValueError: where `mav` is 0, so small that its inverse passes all floats, or not finite.
    """
    if not math.isfinite(mav) or mav <= 0 or not math.isfinite(1 / mav):
        raise ValueError(f"the mean change is {mav}, which has no inverse")
    return float(f"{1 / mav:.{_DIGITS - 1}e}")


def magnitude_weights(
    roles: Sequence[str],
    weights: Sequence[float],
    mavs: Sequence[float | None],
    *,
    task_weight: float = 1.0,
    language_weight: float = 1.0,
) -> Weights:
    """Return the weights that give every expert its uniform share times ``1/MAV``.

    With a_i the weights of a role, A their sum, w the role's weight and v_i = 1/MAV_i::

        a_i -> a_i v_i,    w -> w sum_i(a_i v_i) / A

    so that in an average of both roles expert i counts ``w (a_i/A) v_i``, and in a soup of its
    role ``a_i v_i``. Scaling one expert's change by c scales its weight by 1/c.

    Args:
        roles: `task` or `language`, one an input.
        weights: one an input, within its role; 0 or more.
        mavs: mean change of each input; None is read only for inputs of weight 0.
        task_weight: w of the task experts.
        language_weight: w of the language experts.

    Raises:
        ValueError: for an input that is needed and changed nothing.
    """
    exact = [
        as_written(weight) * as_written(inverse_mav(mav or 0.0)) if weight else Fraction(0)
        for weight, mav in zip(weights, mavs, strict=True)
    ]
    sides = dict.fromkeys(ROLES, 0.0)
    for role, side in zip(ROLES, (task_weight, language_weight), strict=True):
        of_role = [i for i, name in enumerate(roles) if name == role]
        whole = sum(as_written(weights[i]) for i in of_role)
        if whole:
            sides[role] = float(as_written(side) * sum(exact[i] for i in of_role) / whole)
    return Weights(tuple(float(value) for value in exact), sides["task"], sides["language"])
