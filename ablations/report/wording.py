"""What the numbers of a report allow to be said. Knows words; tests nothing."""

from __future__ import annotations

import statistics as plain
from collections import Counter
from collections.abc import Iterator, Sequence

from ablations.report.comparisons import Comparison, Outcome
from ablations.report.design import WHOLE_EXPERT, Group
from ablations.report.names import task_name
from ablations.report.observations import Measure
from ablations.report.primary import Contrast
from ablations.statistics.as_text import percent, points
from ablations.statistics.corpus import CORPUS_METRICS
from ablations.statistics.power import (
    detectable_difference,
    independent_psi,
    items_needed,
    noise_threshold,
)

ALPHA = 0.05
"""A corrected p below this is called evidence; an exploratory p below it is a hint."""

GAP = "–"
"""What stands for a number that there is not."""


def interval_text(outcome: Outcome) -> str:
    """Return the interval of a difference, in points."""
    return f"[{points(outcome.low)}, {points(outcome.high)}]"


def difference_text(outcome: Outcome) -> str:
    """Return a difference in points with its interval, which that of a model to itself lacks."""
    difference = points(outcome.difference)
    return difference if outcome.p is None else f"{difference} {interval_text(outcome)}"


def metric_text(measure: Measure) -> str:
    """Return the metric with its unit; BLEU and its like go from 0 to 100 and are no percentage."""
    return CORPUS_METRICS.get(measure.metric) or f"{measure.metric.replace('_', ' ')} (%)"


def measure_text(measure: Measure, group: Group) -> str:
    """Return the task, with the language of the experts where that is another of several."""
    name = task_name(measure.task)
    return name if group.label in name else f"{name} ({group.label} experts)"


def score_name(measure: Measure, group: Group) -> str:
    """Return the task with its metric."""
    metric = CORPUS_METRICS.get(measure.metric) or measure.metric.replace("_", " ")
    return f"{measure_text(measure, group)}, {metric}"


def contrast_text(comparison: Comparison) -> str:
    """Return what is compared with what."""
    contrast = comparison.contrast
    if {contrast.first, contrast.second} == {"on", "off"}:
        compared = f"{contrast.factor} {contrast.first}/{contrast.second}"
    else:
        # "b=1" says by itself what it is of.
        factor = "" if "=" in contrast.first else contrast.factor
        compared = f"{factor} {contrast.first} against {contrast.second}".lstrip()
    return f"{compared} (both {contrast.shared})" if contrast.shared else compared


def named_level(contrast: Contrast, label: str) -> str:
    """Return a level, with the name of what it is a value of where the label does not say it."""
    if "=" in label or label == WHOLE_EXPERT or not contrast.factor:
        return label
    return f"{contrast.factor} {label}"


def choice_text(contrast: Contrast) -> str:
    """Return what was chosen on which items; empty where nothing was."""
    choice = contrast.choice
    if choice is None:
        return ""
    chosen = ["setting"] * (choice.settings > 1) + ["expert"] * (choice.experts > 1)
    return f"{' and '.join(chosen)} chosen on {choice.items} other items"


def not_compared(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield how many of `comparisons` could not be made, by reason; nothing where all were."""
    reasons = Counter(_why_not(each) for each in comparisons if each.outcome is None)
    for reason, number_of in reasons.items():
        yield f"{number_of} of {len(comparisons)} comparisons could not be made: {reason}"


def mark(comparison: Comparison) -> str:
    """Return `verdict` as a sign: ``*`` evidence, ``°`` an exploratory hint, else empty."""
    if not is_evident(comparison):
        return ""
    return "*" if comparison.is_primary else "°"


def verdict(comparison: Comparison) -> str:
    """Return what the numbers allow to be said."""
    outcome = comparison.outcome
    if outcome is None:
        return f"not compared, {_why_not(comparison)}"
    if comparison.is_same_model:
        return "the same model, nothing to test"
    if not is_evident(comparison):
        if not comparison.is_primary:
            return "exploratory: no sign of a difference"
        if (outcome.p or 0.0) < ALPHA:
            return (
                "no evidence of a difference once corrected for "
                f"{comparison.family} primary comparisons"
            )
        return "no evidence of a difference"
    is_up = (outcome.difference > 0) == comparison.measure.higher_is_better
    contrast = comparison.contrast
    better = named_level(contrast, contrast.first if is_up else contrast.second)
    if not comparison.is_primary:
        return f"exploratory: {better} may be better"
    return f"evidence that {better} is better"


def noise_lines(
    comparisons: Sequence[Comparison],
    medians: Sequence[tuple[Group, Measure, int, float]],
    level: float,
) -> Iterator[str]:
    """Yield, for every measure, how small a difference its items can show.

    Args:
        comparisons: all of the report.
        medians: (group, measure, items, median score) of every measure that has items.
        level: of the intervals.
    """
    for group, measure, items, median in medians:
        where = f"{measure_text(measure, group)}, n={items}"
        outcomes = [
            each.outcome
            for each in comparisons
            if (each.group, each.measure) == (group, measure)
            and each.outcome is not None
            and not each.is_same_model
        ]
        name = CORPUS_METRICS.get(measure.metric)
        if name is not None:
            widths = [(o.high - o.low) / 2 for o in outcomes if o.psi is None]
            if widths:
                width = percent(plain.median(widths))
                yield (
                    f"{where}: {name} differences under about {width} points "
                    f"are noise at {level:.0%} (median half width of the intervals of differences)."
                )
            continue
        yield _noise_line(where, items, [o.psi for o in outcomes if o.psi], median, level)


def _noise_line(where: str, items: int, found: Sequence[float], median: float, level: float) -> str:
    if found:
        psi = plain.median(found)
        told = f"two models compared here differ on {psi:.0%} of the items (median)"
    else:
        psi = independent_psi(median)
        told = f"two models at {percent(median)}% that fail independently differ on {psi:.0%}"
    if psi <= 0:
        return f"{where}: {told}, so nothing can be said of smaller differences."
    smallest = detectable_difference(items, psi, level)
    line = (
        f"{where}: {told}. Between two single models, differences under "
        f"{percent(noise_threshold(items, psi, level))} points are noise at {level:.0%}; "
        f"a true difference of {percent(smallest)} points is found with 80% power"
    )
    if smallest > 0.02 and psi > 0.02**2:
        return f"{line}; one of 2.0 points would take {items_needed(0.02, psi, level):,} items."
    return f"{line}."


def is_evident(comparison: Comparison) -> bool:
    """Return `is_small` of a comparison: by the corrected p of a primary one."""
    outcome = comparison.outcome
    if outcome is None:
        return False
    return is_small(outcome, comparison.p_holm if comparison.is_primary else outcome.p)


def is_small(outcome: Outcome, p: float | None) -> bool:
    """Return whether `p` is below `ALPHA` and the interval excludes zero.

    The exact test of one pair of cells and its interval may differ by a hair.
    """
    return p is not None and p < ALPHA and not outcome.low <= 0 <= outcome.high


def _why_not(comparison: Comparison) -> str:
    if not comparison.measure.is_share:
        return f"{comparison.measure.metric} has no value per item"
    return "cells are missing or their items have no value of their own"
