"""Which inputs make one tensor, with which coefficients. Knows roles and weights; no tensor.

The one home of that decision: the merge method asks it for mergekit, and `streams` for an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from layerswap_method.errors import InputError
from layerswap_method.spec import LayerSwapSpec, Role, TensorSource


@dataclass(frozen=True)
class Terms:
    """A tensor as ``sum_k(coefficients[k] * inputs[k]) / divisor``."""

    inputs: tuple[int, ...]
    """Positions in the list of inputs."""

    coefficients: tuple[float, ...]
    """One an input, 0 or more."""

    divisor: float
    """Positive."""


def needed_roles(source: TensorSource, spec: LayerSwapSpec) -> tuple[str, ...]:
    """Return the roles whose tensors `source` reads; () for the base."""
    if source == "base":
        return ()
    if source != "average":
        return (source,)
    sides = zip(get_args(Role), spec.side_weights, strict=True)
    return tuple(role for role, value in sides if value != 0)


def source_terms(
    name: str,
    source: TensorSource,
    spec: LayerSwapSpec,
    *,
    roles: Sequence[str | None],
    weights: Sequence[float],
    is_base: Sequence[bool],
) -> Terms:
    """Return which of the inputs make the tensor `name`, task experts before language experts.

    Args:
        name: for messages.
        source: where the tensor comes from.
        spec: the recipe's top-level parameters.
        roles: `task`, `language` or None, one an input.
        weights: weight within its role, one an input.
        is_base: whether it is the base model, one an input.

    Raises:
        InputError: if an input that the source needs is missing.
    """
    from layerswap_method.arithmetic import mix_coefficients  # torch: not at the hook's time

    if source == "base":
        for i, base in enumerate(is_base):
            if base:
                return Terms((i,), (1.0,), 1.0)
        raise InputError(f"{name}: non_layer: base, but the base model does not hold this tensor")
    chosen = {key: [i for i, given in enumerate(roles) if given == key] for key in get_args(Role)}
    sides = needed_roles(source, spec)
    missing = [side for side in sides if not chosen[side]]
    if missing:
        raise InputError(f"{name}: no {missing[0]} expert holds this tensor, but {source} needs it")
    coefficients, divisor = mix_coefficients(
        [weights[i] for i in chosen["task"] if "task" in sides],
        [weights[i] for i in chosen["language"] if "language" in sides],
        task_weight=spec.side_weights[0],
        language_weight=spec.side_weights[1],
    )
    order = tuple(i for side in ("task", "language") if side in sides for i in chosen[side])
    return Terms(order, tuple(coefficients), divisor)
