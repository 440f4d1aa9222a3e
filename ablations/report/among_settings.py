"""How the settings of a study compare with each other. Knows words and pairs of settings.

The swap is compared with its rivals elsewhere. Which setting is better is another question: all
pairs of settings are tested on all items and corrected together by Holm's method.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablations.report.comparisons import Comparison, Outcome, compare_models
from ablations.report.design import Group, Model, describe_setting, told_names
from ablations.report.factors import settled
from ablations.report.observations import Measure, Observations
from ablations.report.primary import Contrast
from ablations.report.readings import listed, told_difference
from ablations.report.wording import is_small, measure_text
from ablations.statistics.as_text import points
from ablations.statistics.paired import holm
from ablations.study.schema import Study

MOST_SHOWN = 24
"""Settings that are shown one by one."""

_MOST_NAMES = 4
"""Settings that a sentence names."""

_Setting = tuple[str, tuple[Model, ...]]
"""What differs between it and the others, in words, and its models."""


@dataclass(frozen=True)
class _Pair:
    """Two settings, the later minus the earlier."""

    later: str
    earlier: str
    comparison: Comparison
    is_better: bool
    """Whether the later one scores better."""

    p: float | None
    """Corrected for all pairs."""

    @property
    def outcome(self) -> Outcome:
        """Return how they differ."""
        assert self.comparison.outcome is not None
        return self.comparison.outcome


def among_settings(observations: Observations, group: Group, measure: Measure) -> str:
    """Return which settings are better than others on one score, in a sentence.

    Empty for a study of one setting, of too many to name, and of settings that have no score.
    """
    settings = [
        (label, models)
        for label, models in _named(observations.run.study)
        if observations.block(models, group, measure, observations.items(group, measure))
    ]
    number = len(settings)
    if not 1 < number <= MOST_SHOWN or not _are_alike(settings):
        return ""
    where = measure_text(measure, group)
    if _are_level(observations, group, measure, settings):
        which = "Both settings" if number == 2 else f"All {number} settings"
        return f"{which} score the same on every item of {where}."
    pairs = _pairs(observations, group, measure, settings)
    if not pairs:
        return ""
    between = f"{'Between' if number == 2 else 'Among'} the {number} settings"
    corrected = "" if len(pairs) == 1 else f", p corrected for {len(pairs)} pairs"
    worse: dict[str, _Pair] = {}
    for pair in sorted(pairs, key=lambda each: -abs(each.outcome.difference)):
        if is_small(pair.outcome, pair.p):
            worse.setdefault(pair.earlier if pair.is_better else pair.later, pair)
    end = f"(exploratory{corrected})."
    if not worse:
        widest = max(pairs, key=lambda each: abs(each.outcome.difference))
        numbers = told_difference(widest.comparison)
        if is_small(widest.outcome, widest.outcome.p):
            numbers += ", not significant after correction"
        names = f"{widest.later} minus {widest.earlier}"
        names = names if number == 2 else f"the largest ({names})"
        return (
            f"{between} there is no evidence of a difference on {where}: {names} is {numbers} {end}"
        )
    best = [label for label, _ in settings if label not in worse]
    if number == 2 and best:
        ((other, pair),) = worse.items()
        numbers = f"{_numbers(pair, best[0])} compared with {other}"
        return f"Of the 2 settings {best[0]} is better on {where}: {numbers} {end}"
    told = []
    others = {label: _other(pair, label) for label, pair in worse.items()}
    than = next(iter(others.values())) if len(set(others.values())) == 1 else ""
    for label in (label for label, _ in settings if label in worse):
        numbers = _numbers(worse[label], label)
        numbers += "" if than else f" compared with {others[label]}"
        told.append(f"{label} ({numbers})" if len(worse) <= _MOST_NAMES else label)
    return (
        f"{between} none is significantly better on {where} than {_some(best)}; worse "
        f"{f'than {than} ' * bool(than)}{'is' if len(told) == 1 else 'are'} {_some(told)} {end}"
    )


def _named(study: Study) -> list[_Setting]:
    """Return the settings by what differs between them; those that differ by seed are one."""
    if study.recipe is None:
        return []
    found = settled(study)
    names = told_names([setting for setting, _ in found])
    return [(describe_setting(setting, names) or m[0].short, m) for setting, m in found]


def _are_alike(settings: Sequence[_Setting]) -> bool:
    """Return whether settings have as many experts of each role, or one: they have their like."""
    models = [model for _, each in settings for model in each]
    tasks, languages = ({len(getattr(m, role)) for m in models} for role in ("task", "language"))
    return len(tasks - {1}) < 2 and len(languages - {1}) < 2


def _are_level(
    observations: Observations,
    group: Group,
    measure: Measure,
    settings: Sequence[_Setting],
) -> bool:
    """Return whether all settings got the same score on every item."""
    items = observations.items(group, measure)
    blocks = [observations.block(models, group, measure, items) for _, models in settings]
    first, *others = [block for block in blocks if block is not None]
    return all(
        np.array_equal(first.counts, each.counts) and np.array_equal(first.present, each.present)
        for each in others
    )


def _pairs(
    observations: Observations,
    group: Group,
    measure: Measure,
    settings: Sequence[_Setting],
) -> list[_Pair]:
    sign = 1 if measure.higher_is_better else -1
    found = []
    for (one, earlier), (other, later) in itertools.combinations(settings, 2):
        outcome = compare_models(observations, group, measure, (later, earlier))
        if outcome is not None:
            contrast = Contrast("", other, one, later, earlier)
            found.append((Comparison(contrast, group, measure, outcome), outcome))
    tested = [outcome.p for _, outcome in found if outcome.p is not None]
    left = iter(holm(tested))
    return [
        _Pair(
            *(each.contrast.first, each.contrast.second, each),
            sign * outcome.difference > 0,
            None if outcome.p is None else next(left),
        )
        for each, outcome in found
    ]


def _other(pair: _Pair, label: str) -> str:
    return pair.earlier if pair.later == label else pair.later


def _numbers(pair: _Pair, label: str) -> str:
    """Return how a setting differs from the other one of the pair."""
    sign = 1 if pair.later == label else -1
    low, high = sorted((sign * pair.outcome.low, sign * pair.outcome.high))
    return f"{points(sign * pair.outcome.difference)} points [{points(low)}, {points(high)}]"


def _some(names: Sequence[str]) -> str:
    """Return the names, of many the first ones and how many more there are."""
    if len(names) <= _MOST_NAMES:
        return listed(names)
    return listed([*names[:_MOST_NAMES], f"{len(names) - _MOST_NAMES} more"])
