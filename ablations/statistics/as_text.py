"""Numbers as text: percent, points, intervals, p values."""

from __future__ import annotations

from ablations.statistics.intervals import Interval


def percent(value: float) -> str:
    """Return ``32.4`` for 0.324."""
    return f"{100 * value + 0.0:.1f}"


def points(difference: float) -> str:
    """Return ``+0.4`` for 0.004; zero has a plus sign."""
    text = f"{100 * difference:+.1f}"
    return "+0.0" if text == "-0.0" else text


def number(value: float, is_share: bool) -> str:
    """Return a score as a table shows it: a share in percent, others with three decimals."""
    return percent(value) if is_share else f"{value:.3f}"


def with_interval(
    value: float, interval: Interval | tuple[float, float] | None, is_share: bool = True
) -> str:
    """Return ``32.4 [28.9, 35.8]`` for shares; the number alone for others or without interval."""
    text = number(value, is_share)
    if interval is None or not is_share:
        return text
    low, high = interval if isinstance(interval, tuple) else (interval.low, interval.high)
    return f"{text} [{percent(low)}, {percent(high)}]"


def p_text(p: float) -> str:
    """Return ``0.520`` or ``<0.001``."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
