"""Which models of a study are compared, and how each comparison came out. Knows no layout.

Compared are the levels of every factor with its first level, and the recipe with every baseline.
The primary comparisons (see `primary`) are one family for Holm's correction; the others are
exploratory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ablations.report.baselines import against_base, baseline_of
from ablations.report.design import Group, Model, recipe_models
from ablations.report.observations import Block, Item, Measure, Observations
from ablations.report.primary import Contrast, factor_contrasts, primary_contrasts
from ablations.report.targets import in_order
from ablations.statistics.crossed import (
    Estimate,
    difference_interval,
    difference_p,
    estimate,
    score_interval,
)
from ablations.statistics.intervals import Array
from ablations.statistics.paired import holm, mcnemar_exact, newcombe_interval
from ablations.study.schema import Study

MOST_SETTINGS = 4
"""Settings that are compared with the baselines one by one; of more, their average is."""

MCNEMAR = "exact McNemar test, Newcombe's paired interval"
OVER_ITEMS = "Newcombe's paired interval on effective numbers of items, and p from that interval"
OVER_EXPERTS = "the same over experts and items together"
WITH_REPEATS = ", with the repeats of an item as one more level"


@dataclass(frozen=True)
class Outcome:
    """What a comparison of two blocks gave."""

    difference: float
    """First minus second, on the scale of the score."""

    low: float
    """Lower end of its interval."""

    high: float
    """Upper end."""

    p: float | None
    """Two-sided; None where both are the same model, so nothing is tested."""

    method: str
    """How p and the interval were computed."""

    items: int
    """Items that both answered."""

    cells: int
    """Pairs of cells that were compared; one that stands for several draws counts once."""

    task_experts: int
    """Task experts behind them."""

    language_experts: int
    """Language experts behind them."""

    psi: float | None
    """Mean squared difference per item of two single cells; None for BLEU and its kin."""

    models: tuple[tuple[str, str], ...]
    """The two models of every pair of cells, by their weights."""


@dataclass(frozen=True)
class Comparison:
    """A contrast on one measure in one group."""

    contrast: Contrast
    """What is compared."""

    group: Group
    """Where."""

    measure: Measure
    """By which score."""

    outcome: Outcome | None
    """None where a cell is missing or items have no value of their own."""

    p_holm: float | None = None
    """p corrected for all primary comparisons of the report; None for an exploratory one."""

    family: int = 0
    """How many they are, those of the same models counted once; 0 for an exploratory one."""

    @property
    def is_primary(self) -> bool:
        """Whether the study named it beforehand; all others are exploratory."""
        return self.contrast.rival is not None

    @property
    def is_same_model(self) -> bool:
        """Whether both are one model by their weights."""
        return self.outcome is not None and self.outcome.p is None


@dataclass(frozen=True)
class Comparer:
    """How blocks are compared."""

    seed: int
    """Of the halves of the items: what is chosen on one is tested on the other."""

    level: float
    """Of the intervals, in (0, 1)."""

    def interval(self, block: Block) -> tuple[float, float]:
        """Return the interval of the average over the cells of `block`, over experts and items."""
        found = estimate(block.values(block.counts), block.present)
        return score_interval(found, self.level)

    def compare(self, first: Block, second: Block) -> Outcome | None:
        """Return how `first` differs from `second`; None where no cell has its like."""
        shape = np.broadcast_shapes(first.present.shape, second.present.shape)
        one, other = (_broadcast(each.counts, shape) for each in (first, second))
        present = np.logical_and(first.present, second.present)
        if not present.any():
            return None
        weights = [_broadcast(each.weights, shape)[present] for each in (first, second)]
        scores = [first.statistic(each.sum(axis=3))[present].mean() for each in (one, other)]
        per_item = (one - other)[present].mean(axis=-1)
        outcome = Outcome(
            difference=float(scores[0] - scores[1]),
            low=0.0,
            high=0.0,
            p=None,
            method="",
            items=one.shape[3],
            cells=len({*zip(*np.nonzero(present)[1:], *weights, strict=True)}),
            task_experts=int(present.any(axis=(0, 2)).sum()),
            language_experts=int(present.any(axis=(0, 1)).sum()),
            psi=None if one.shape[-1] > first.repeats else float((per_item**2).mean()),
            models=tuple((str(a), str(b)) for a, b in zip(*weights, strict=True)),
        )
        if all(a == b for a, b in outcome.models):
            return outcome
        if outcome.cells == 1 and first.is_binary and second.is_binary:
            return _compare_right_and_wrong(outcome, one[present][0], other[present][0], self.level)
        values = [first.values(each) for each in (one, other)]
        found: tuple[Estimate, Estimate, Estimate] = (
            estimate(values[0], present),
            estimate(values[1], present),
            estimate(values[0] - values[1], present),
        )
        low, high = difference_interval(*found, self.level)
        several = outcome.task_experts > 1 or outcome.language_experts > 1
        method = OVER_EXPERTS if several else OVER_ITEMS
        return replace(
            outcome,
            low=low,
            high=high,
            p=difference_p(*found),
            method=f"{method}{WITH_REPEATS if first.repeats > 1 else ''}",
        )


def compare_models(
    observations: Observations,
    group: Group,
    measure: Measure,
    pair: tuple[tuple[Model, ...], tuple[Model, ...]],
    items: Sequence[Item] | None = None,
) -> Outcome | None:
    """Return how the first models differ from the second; None where a cell is missing.

    Args:
        observations: of the run.
        group: where.
        measure: by which score.
        pair: as many models each, or one.
        items: to compare on; None for all.
    """
    chosen = observations.items(group, measure) if items is None else items
    first, second = (observations.block(models, group, measure, chosen) for models in pair)
    evaluate = observations.run.study.evaluate
    comparer = Comparer(seed=evaluate.seed, level=evaluate.level)
    return comparer.compare(first, second) if first and second else None


def contrasts(study: Study) -> Iterator[Contrast]:
    """Yield what is compared on all items, factors first; without a recipe, experts with base."""
    yield from factor_contrasts(study)
    for model, base in against_base(study):
        yield Contrast("", model.label, base.label, (model,), (base,))
    recipes = recipe_models(study)
    for kind in study.baseline:
        # Each against the baseline of its own experts.
        matched = tuple(baseline_of(kind, model) for model in recipes)
        if len(recipes) > MOST_SETTINGS:
            label = f"average of {len(recipes)} settings"
            seconds = matched[:1] if len(set(matched)) == 1 else matched
            yield Contrast("", label, matched[0].label, recipes, seconds)
            continue
        for model, baseline in zip(recipes, matched, strict=True):
            yield Contrast("", model.label, baseline.label, (model,), (baseline,))


def compare_all(observations: Observations, comparer: Comparer) -> tuple[Comparison, ...]:
    """Return every comparison of the report; first those that are primary and nothing else."""
    own: list[Comparison] = []
    listed: list[Comparison] = []
    everything = list(contrasts(observations.run.study))
    for group, measure in in_order(observations):
        items = observations.items(group, measure)
        primary = list(primary_contrasts(observations, group, measure, items, seed=comparer.seed))
        on_all = {_models(each): each for each, _ in primary if not each.chosen_on}
        jobs = [(each, some, own) for each, some in primary if each.chosen_on]
        jobs += [(on_all.pop(_models(each), each), items, listed) for each in everything]
        jobs += [(each, items, own) for each in on_all.values()]
        for contrast, some, found in jobs:
            first, second = (
                observations.block(models, group, measure, some)
                for models in (contrast.first_models, contrast.second_models)
            )
            outcome = comparer.compare(first, second) if first and second else None
            found.append(Comparison(contrast, group, measure, outcome))
    return tuple(_corrected([*own, *listed]))


def _models(contrast: Contrast) -> tuple[tuple[Model, ...], tuple[Model, ...]]:
    return contrast.first_models, contrast.second_models


def _corrected(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """Yield the comparisons, the primary ones with their corrected p."""
    # Settings that come to the same weights (layer counts on a small model) are one hypothesis.
    keys = [
        (each.group, each.measure, each.outcome.models, each.contrast.chosen_on)
        if each.is_primary and each.outcome is not None
        else None
        for each in comparisons
    ]
    tested = {
        key: each.outcome.p
        for key, each in zip(keys, comparisons, strict=True)
        if key is not None and each.outcome is not None and each.outcome.p is not None
    }
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    for key, each in zip(keys, comparisons, strict=True):
        if key is None or key not in tested:
            yield each
        else:
            yield replace(each, p_holm=corrected[key], family=len(tested))


def _compare_right_and_wrong(outcome: Outcome, one: Array, other: Array, level: float) -> Outcome:
    right, others = one[:, 0] == 1, other[:, 0] == 1
    first_only, second_only = int((right & ~others).sum()), int((others & ~right).sum())
    both, neither = int((right & others).sum()), int((~right & ~others).sum())
    low, high = newcombe_interval(both, first_only, second_only, neither, level)
    p = mcnemar_exact(first_only, second_only)
    return replace(outcome, low=low, high=high, p=p, method=MCNEMAR)


def _broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """Return `array` with its first axes repeated (not copied) where they have length 1."""
    return np.broadcast_to(array, (*shape, *array.shape[len(shape) :]))
