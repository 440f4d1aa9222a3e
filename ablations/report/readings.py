"""How comparisons read in a sentence: better, worse, level, and why. Knows words; tests nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ablations.report.comparisons import MCNEMAR, Comparison, Outcome
from ablations.report.wording import ALPHA, interval_text, is_evident
from ablations.statistics.as_text import p_text, points
from ablations.statistics.paired import mcnemar_exact

_READINGS = {
    "better": ("is better than", "are better than"),
    "worse": ("is worse than", "are worse than"),
    "level": ("does not differ significantly from", "do not differ significantly from"),
    "same": ("is the same model as", "are the same model as"),
}
"""Reading -> what is said of one model, and of several."""


def doubt_text(comparison: Comparison) -> str:
    """Return why a difference is no evidence though its interval excludes zero; else empty."""
    outcome = comparison.outcome
    if outcome is None or outcome.p is None or outcome.low <= 0 <= outcome.high:
        return ""
    if is_evident(comparison):
        return ""
    if outcome.p < ALPHA:
        return "not significant after correction"
    return "too few items for p < 0.05" if is_too_short(outcome) else f"p = {p_text(outcome.p)}"


def is_too_short(outcome: Outcome, family: int = 1) -> bool:
    """Return whether even models that differ on every item would not differ significantly.

    Args:
        outcome: of single cells with right and wrong answers; others have no such limit.
        family: comparisons that p is corrected for.
    """
    return outcome.method == MCNEMAR and family * mcnemar_exact(outcome.items, 0) >= ALPHA


def told_difference(comparison: Comparison) -> str:
    """Return a difference with its interval, and why it is no evidence where that is not plain."""
    outcome = comparison.outcome
    assert outcome is not None
    if outcome.p is None:
        return f"{points(outcome.difference)} points"
    numbers = f"{points(outcome.difference)} points {interval_text(outcome)}"
    return ", ".join(filter(None, (numbers, doubt_text(comparison))))


def compared_with(first: str, told: Sequence[tuple[Comparison, str]]) -> str:
    """Return which models are better or worse than the first one, as a sentence without its end.

    Args:
        first: what all are compared with, in words.
        told: comparisons with it, each with the model in words.
    """
    found: dict[str, list[str]] = {}
    for comparison, name in told:
        found.setdefault(_reading(comparison), []).append(name)
    parts: list[str] = []
    for reading, (one, many) in _READINGS.items():
        names = found.get(reading)
        if names:
            other = "it" if parts else first
            parts.append(f"{listed(names)} {one if len(names) == 1 else many} {other}")
    return listed(parts, ", and ")


def place_of_reading(comparison: Comparison) -> int:
    """Return the place of a comparison's reading among those of a `compared_with` sentence."""
    return list(_READINGS).index(_reading(comparison))


def listed(texts: Sequence[str], last: str = " and ") -> str:
    """Return ``a, b and c``."""
    *some, end = texts
    return f"{', '.join(some)}{last}{end}" if some else end


def _reading(comparison: Comparison) -> str:
    if comparison.is_same_model:
        return "same"
    outcome = comparison.outcome
    if outcome is None or not is_evident(comparison):
        return "level"
    is_up = (outcome.difference > 0) == comparison.measure.higher_is_better
    return "better" if is_up else "worse"
