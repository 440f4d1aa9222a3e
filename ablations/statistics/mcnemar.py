"""p value and interval of two models on the same items, one cell each: McNemar's, Tango's.

The p value of a mean over experts, seeds or languages is `means_and_p_values.Estimate.p_value`;
`ablations.report.comparisons` chooses between them, and `holm` corrects several.
"""

from __future__ import annotations

import math

from ablations.statistics.means_and_p_values import alpha_of


def mcnemar_p(first_only: int, second_only: int) -> float:
    """Return the exact two-sided p of McNemar's test for two models on the same items.

    Args:
        first_only: number of items that only the first model gets right.
        second_only: likewise.
    """
    if first_only + second_only == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(first_only, first_only + second_only).pvalue)


def paired_score(first_only: int, second_only: int, items: int, difference: float) -> float:
    """Return the score statistic of a difference of two shares on the same items.

    Under the hypothesis that the true difference is `difference`, which lies in (-1, 1), it is
    about standard normal. Source: Tango 1998, Statistics in Medicine 17:891.
    """
    rest = difference * (1 - difference)
    linear = (2 * items - first_only + second_only) * difference - first_only - second_only
    root = math.sqrt(max(linear**2 + 8 * items * second_only * rest, 0.0))
    share = (root - linear) / (4 * items)
    variance = items * (2 * share + rest)
    distance = first_only - second_only - items * difference
    return distance / math.sqrt(max(variance, 1e-300))


def paired_interval(
    first_only: int, second_only: int, items: int, level: float = 0.95
) -> tuple[float, float]:
    """Return the interval of a difference of two shares on the same items, for single cells.

    It holds the differences that the score test of Tango (1998) does not reject, and zero where
    the exact test of McNemar does not: so it excludes zero exactly where that p is small. It keeps
    its level at scores near 0 and 1, as Wilson's interval of one share does.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.ppf((1 + level) / 2))
    end = 1 - 1e-12
    middle = min(max((first_only - second_only) / items, -end), end)

    def reached(sign: int) -> float:
        def room(difference: float) -> float:
            return sign * paired_score(first_only, second_only, items, difference) + z

        edge = sign * end
        return float(sign) if room(edge) > 0 else float(brentq(room, middle, edge))

    low, high = reached(-1), reached(1)
    if mcnemar_p(first_only, second_only) >= alpha_of(level):
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high


def paired_p_outside(first_only: int, second_only: int, items: int, margin: float) -> float:
    """Return p of the hypothesis that a difference of two shares lies outside of ±`margin`.

    The larger p of two one-sided score tests.
    """
    from scipy.stats import norm

    below = paired_score(first_only, second_only, items, -margin)
    above = -paired_score(first_only, second_only, items, margin)
    return float(norm.sf(min(below, above)))
