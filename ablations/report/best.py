"""Which settings are the best on one score, without praising chance. Knows blocks; no layout.

The best of many noisy scores is too high by chance, so it is chosen on one half of the items and
compared with the others on the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablations.report.comparisons import compare_models
from ablations.report.design import Group, Model
from ablations.report.observations import Measure, Observations
from ablations.report.primary import halves
from ablations.report.wording import ALPHA
from ablations.statistics.paired import holm

Models = tuple[Model, ...]
"""Settings that are averaged."""


@dataclass(frozen=True)
class Best:
    """The best of several settings and those that may be as good."""

    best: Models
    """Chosen on the first half."""

    near: tuple[Models, ...]
    """The best, and every setting that is not significantly worse on the second half (p of 0.05 or
    more, corrected for all settings by Holm's method)."""

    number_of: int
    """Settings that were compared."""

    items: int
    """Of the second half."""


def best_of(
    observations: Observations,
    settings: Sequence[Models],
    group: Group,
    measure: Measure,
) -> Best | None:
    """Return the best of `settings`; None with fewer than two results or items."""
    items = observations.items(group, measure)
    choosing, testing = halves(items, observations.run.study.evaluate.seed)
    if not choosing:
        return None
    sign = 1 if measure.higher_is_better else -1
    scores = {}
    for models in settings:
        block = observations.block(models, group, measure, choosing)
        if block is not None:
            scores[models] = block.average()
    if len(scores) < 2:
        return None
    best = max(scores, key=lambda models: sign * scores[models])
    outcomes = {
        models: outcome
        for models in scores
        if models != best
        and (outcome := compare_models(observations, group, measure, (best, models), testing))
    }
    # All of them are one family: which ones look worse is seen in the same data.
    tested = {models: each.p for models, each in outcomes.items() if each.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    near = [
        models
        for models, each in outcomes.items()
        if corrected.get(models, 1.0) >= ALPHA or sign * each.difference <= 0
    ]
    return Best(best, (best, *near), len(scores), len(testing))
