"""What a tensor is made of: a copy of a parent, a weighted sum of parents, or something else.

A sum leaves rounding as its only residual: half a step of the merge's dtype, and as much for each
rounding in between. So a sample of some hundred values tells a sum from anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ablations.statistics.means_and_p_values import Array

_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Binary digits of a value, by torch's name of the dtype."""

_LOWEST = {"float64": -1021, "float32": -125, "float16": -13, "bfloat16": -125}
"""Smallest exponent of a normal number, as frexp counts; below it steps get no smaller."""

_NOISE = 3.0
"""Mean square of residuals, in half steps, up to which they are rounding. One rounding has 1/3;
sums in a 16-bit dtype round each product and each partial sum."""

_VALUES_PER_PARENT = 8
"""Fewer values than this for each parent are fitted by chance."""

UNSURE = 0.05
"""Standard error of a coefficient above which it is not told: the parents are too alike."""

_SURE = 3.0
"""Standard errors within which a coefficient is taken for a simple number."""


@dataclass(frozen=True)
class Sum:
    """A weighted sum of parents, fitted to values of one tensor or of several.

    `covariance` is of `coefficients`, in the order of their names; `residual` is the norm of what
    the sum leaves, divided by that of the distance from the nearest parent.
    """

    coefficients: Mapping[str, float]
    covariance: Array = field(repr=False, compare=False)
    residual: float
    is_rounding: bool
    """Whether the residual is no more than rounding leaves."""

    equal: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Parent that is left out -> the one of `coefficients` whose values are the same."""

    def agrees(self, other: Sum) -> bool:
        """Return whether both can be one sum, by the errors of their coefficients."""
        if self.names != other.names or self.equal != other.equal:
            return False
        distance = np.array([self.coefficients[n] - other.coefficients[n] for n in self.names])
        errors = np.sqrt(np.diag(self.covariance) + np.diag(other.covariance))
        return bool((np.abs(distance) <= 5 * errors + 1e-9).all())

    @property
    def names(self) -> tuple[str, ...]:
        """The parents, in the order of the covariance."""
        return tuple(self.coefficients)

    @property
    def errors(self) -> dict[str, float]:
        """Standard error of each coefficient."""
        spread = np.sqrt(np.diag(self.covariance))
        return dict(zip(self.names, spread.tolist(), strict=True))


def half_steps(values: Array, dtype: str) -> Array:
    """Return half the distance of neighbouring numbers of a dtype at each value."""
    _, exponents = np.frexp(np.where(values == 0, np.finfo(np.float64).tiny, values))
    return np.asarray(np.ldexp(0.5, np.maximum(exponents, _LOWEST[dtype]) - _DIGITS[dtype]))


def is_rounding(left: Array, values: Sequence[Array], dtype: str) -> bool:
    """Return whether what a sum leaves of a merge is no more than rounding leaves.

    Args:
        left: differences of the merge and the sum, shape [values].
        values: those of the merge and of the parents in the sum, each of that shape.
        dtype: torch's name of the merge's dtype.
    """
    return _noise(left, _steps(values, dtype)) <= _NOISE


def _steps(values: Sequence[Array], dtype: str) -> Array:
    return half_steps(np.max(np.abs(values), axis=0), dtype)


def _noise(left: Array, steps: Array) -> float:
    return float(np.mean((left / steps) ** 2))


def fit_sum(merged: Array, parents: Mapping[str, Array], dtype: str) -> Sum | None:
    """Return the weighted sum of parents that is nearest to the values of a merge.

    Least squares, in half steps of `dtype` at the largest of the values at each place. A sum whose
    coefficients sum to 1 is preferred, as that has one unknown less. Parents with equal values are
    one, under the first of their names.

    Args:
        merged: values of the merge, shape [values], finite.
        parents: name -> values at the same places.
        dtype: torch's name of the merge's dtype.

    Returns:
        None where the values are too few to say.
    """
    distinct: dict[str, Array] = {}
    equal: dict[str, str] = {}
    for name, values in parents.items():
        same = next((n for n, other in distinct.items() if np.array_equal(values, other)), None)
        if same is None:
            distinct[name] = values
        else:
            equal[name] = same
    if len(merged) < _VALUES_PER_PARENT * len(distinct):
        return None
    names = list(distinct)
    matrix = np.stack([distinct[name] for name in names], axis=1)
    steps = _steps([merged, *distinct.values()], dtype)
    nearest = min(float(np.linalg.norm(merged - column)) for column in matrix.T)

    def measured(solution: Array, covariance: Array) -> Sum:
        left = merged - matrix @ solution
        noise = _noise(left, steps)
        residual = float(np.linalg.norm(left)) / nearest if nearest else 0.0
        coefficients = dict(zip(names, solution.tolist(), strict=True))
        covariance = covariance * max(noise, 1 / 3)
        return Sum(coefficients, covariance, residual, noise <= _NOISE, equal)

    # The last coefficient is 1 minus the others.
    differences = (matrix[:, :-1] - matrix[:, -1:]) / steps[:, None]
    others, spread = _least_squares(differences, (merged - matrix[:, -1]) / steps)
    last = np.vstack([np.eye(len(others)), -np.ones((1, len(others)))])
    to_one = measured(np.append(others, 1 - others.sum()), last @ spread @ last.T)
    if to_one.is_rounding:
        return to_one
    free = measured(*_least_squares(matrix / steps[:, None], merged / steps))
    return free if free.is_rounding else to_one


def joined(sums: Sequence[Sum]) -> Sum:
    """Return the sum that several tensors are made of, each weighted by its precision."""
    names = sums[0].names
    precisions = [np.linalg.pinv(entry.covariance, hermitian=True) for entry in sums]
    covariance = np.linalg.pinv(sum(precisions, np.zeros_like(precisions[0])), hermitian=True)
    first = np.array([sums[0].coefficients[name] for name in names])
    # A direction in which no tensor is sure keeps the first one's value.
    moved = sum(
        (
            precision @ (np.array([entry.coefficients[name] for name in names]) - first)
            for entry, precision in zip(sums, precisions, strict=True)
        ),
        np.zeros(len(names)),
    )
    values = first + covariance @ moved
    residual = max(entry.residual for entry in sums)
    coefficients = dict(zip(names, values.tolist(), strict=True))
    is_rounding = all(entry.is_rounding for entry in sums)
    return Sum(coefficients, covariance, residual, is_rounding, sums[0].equal)


def simple_coefficients(fitted: Sum, dtype: str) -> dict[str, float] | None:
    """Return the coefficients as the simple numbers that they probably are, without zeros.

    Each is the simplest decimal of up to three digits, or fraction, within three standard errors,
    or within the rounding of the number itself to `dtype` (mergekit multiplies by rounded weights).
    None where one has no such number, or an error so large that any would do (`UNSURE`).
    """
    simple: dict[str, float] = {}
    for name, value in fitted.coefficients.items():
        error = fitted.errors[name]
        room = max(
            _SURE * error,
            2.0 ** (1 - _DIGITS[dtype]) * max(map(abs, fitted.coefficients.values())),
            1e-6,
        )
        if error > UNSURE:
            return None
        number = next(
            (choice for choice in _simple_numbers(value) if abs(choice - value) <= room), None
        )
        if number is None:
            return None
        simple[name] = number
    return {name: value for name, value in simple.items() if value}


def _simple_numbers(value: float) -> Iterator[float]:
    """Yield numbers near a value, simple ones first: 0.35 before 7/20, 1/3 before 0.333."""
    yield from (round(value, 0), round(value, 1))
    yield from (round(value * size) / size for size in range(2, 13))
    yield from (round(value, 2), round(value, 3))


def _least_squares(matrix: Array, values: Array) -> tuple[Array, Array]:
    """Return the solution, and its covariance for residuals of variance 1."""
    if not matrix.shape[1]:
        return np.zeros(0), np.zeros((0, 0))
    lengths = np.linalg.norm(matrix, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = matrix / lengths
    solution = np.linalg.lstsq(scaled, values, rcond=None)[0]
    covariance = np.linalg.pinv(scaled.T @ scaled, hermitian=True)
    return solution / lengths, covariance / np.outer(lengths, lengths)
