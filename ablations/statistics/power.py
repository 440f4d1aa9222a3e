"""How large a difference a number of items can show. Knows formulas only; no run, no test.

Two models that are asked the same n items differ on some of them. With psi the mean squared
difference per item (for right or wrong: the share of items that just one of the two gets right),
the standard error of their difference d is sqrt((psi - d²)/n).
"""

from __future__ import annotations

import math
from statistics import NormalDist


def independent_psi(score: float) -> float:
    """Return psi of two models of the same accuracy that fail independently: 2 p (1-p).

    Models merged from the same experts fail together more often, so theirs is smaller.
    """
    return 2 * score * (1 - score)


def noise_threshold(n: int, psi: float, level: float = 0.95) -> float:
    """Return the largest difference that equally good models show in `level` of all cases.

    ``z sqrt(psi/n)``, with z the two-sided normal quantile of `level`; in [0, 1] like `psi`.
    """
    return _two_sided(level) * math.sqrt(psi / n)


def detectable_difference(n: int, psi: float, level: float = 0.95, power: float = 0.8) -> float:
    """Return the smallest true difference that a test on n items finds with chance `power`.

    The d at which ``d sqrt(n) = z_level sqrt(psi) + z_power sqrt(psi - d²)``. Source: Connor
    1987, Biometrics 43:207 (sample size of McNemar's test). It may exceed psi when n is too
    small for any difference to be found.
    """
    far, near = _two_sided(level), NormalDist().inv_cdf(power)
    # Squared and sorted: (n + near²) d² - 2 far sqrt(psi n) d + (far² - near²) psi = 0.
    lead, half = n + near**2, far * math.sqrt(psi * n)
    root = math.sqrt(max(half**2 - lead * (far**2 - near**2) * psi, 0.0))
    return (half + root) / lead


def items_needed(difference: float, psi: float, level: float = 0.95, power: float = 0.8) -> int:
    """Return how many items it takes to find `difference` with chance `power`.

    ``((z_level sqrt(psi) + z_power sqrt(psi - d²)) / d)²``, rounded up. Source: Connor 1987.

    Raises:
        ValueError: for psi < difference², which cannot be.
    """
    far, near = _two_sided(level), NormalDist().inv_cdf(power)
    root = far * math.sqrt(psi) + near * math.sqrt(psi - difference**2)
    return math.ceil((root / difference) ** 2)


def _two_sided(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)
