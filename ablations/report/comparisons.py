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

from ablations.report.design import Group, Model, baseline_of, recipe_models
from ablations.report.observations import Block, Measure, Observations
from ablations.report.primary import Contrast, factor_contrasts, primary_contrasts
from ablations.statistics.bootstrap import (
    BOOTSTRAP_RESAMPLES,
    Draws,
    Mask,
    bootstrap_p_value,
    draw,
    percentile_interval,
    resampled_scores,
)
from ablations.statistics.intervals import Array
from ablations.statistics.paired import (
    PERMUTATIONS,
    holm,
    mcnemar_exact,
    newcombe_interval,
    permutation_test,
)
from ablations.study.schema import Study

MOST_SETTINGS = 4
"""Settings that are compared with the baselines one by one; of more, their average is."""

MCNEMAR = "exact McNemar test, Newcombe's paired interval"
PERMUTATION = "paired permutation test over items, bootstrap interval"
BOOTSTRAP = "paired bootstrap"


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


class Comparer:
    """Compares blocks with draws that are the same for all of them."""

    def __init__(self, *, seed: int, level: float) -> None:
        """Take the seed of every draw and the level of the intervals."""
        self._seed = seed
        self.level = level
        self._draws: dict[tuple[tuple[int, ...], bool], Draws] = {}

    def interval(self, block: Block) -> tuple[float, float]:
        """Return the interval of the average over the cells of `block`, over experts and items."""
        draws = self._draw(block.counts.shape, experts=True)
        scores = resampled_scores(block.counts, block.present, block.statistic, draws)
        return percentile_interval(scores, self.level)

    def compare(self, first: Block, second: Block) -> Outcome | None:
        """Return how `first` differs from `second`; None where no cell has its like."""
        shape = np.broadcast_shapes(first.present.shape, second.present.shape)
        one, other = (_broadcast(each.counts, shape) for each in (first, second))
        present = np.logical_and(first.present, second.present)
        if not present.any():
            return None
        weights = [_broadcast(each.weights, shape)[present] for each in (first, second)]
        items = one.shape[3]
        scores = [first.statistic(each.sum(axis=3))[present].mean() for each in (one, other)]
        per_item = (one - other)[present][..., 0]
        is_corpus = one.shape[-1] > 1
        outcome = Outcome(
            difference=float(scores[0] - scores[1]),
            low=0.0,
            high=0.0,
            p=None,
            method="",
            items=items,
            cells=len({*zip(*np.nonzero(present)[1:], *weights, strict=True)}),
            task_experts=int(present.any(axis=(0, 2)).sum()),
            language_experts=int(present.any(axis=(0, 1)).sum()),
            psi=None if is_corpus else float((per_item**2).mean()),
            models=tuple((str(a), str(b)) for a, b in zip(*weights, strict=True)),
        )
        if all(a == b for a, b in outcome.models):
            return outcome
        if outcome.cells == 1 and first.is_binary and second.is_binary:
            return _compare_right_and_wrong(outcome, one[present][0], other[present][0], self.level)
        low, high = percentile_interval(
            self._differences(first, one, other, present, experts=True), self.level
        )
        if is_corpus:
            drawn = self._differences(first, one, other, present, experts=False)
            p, method = bootstrap_p_value(drawn, outcome.difference), BOOTSTRAP
        else:
            p, method = permutation_test(per_item.mean(axis=0), seed=self._seed), PERMUTATION
        return replace(outcome, low=low, high=high, p=p, method=method)

    def _differences(
        self, block: Block, one: Array, other: Array, present: Mask, *, experts: bool
    ) -> Array:
        draws = self._draw(one.shape, experts=experts)
        scores = [resampled_scores(each, present, block.statistic, draws) for each in (one, other)]
        return np.asarray(scores[0] - scores[1], dtype=np.float64)

    def _draw(self, shape: tuple[int, ...], *, experts: bool) -> Draws:
        key = (shape[1:4], experts)
        if key not in self._draws:
            resamples = BOOTSTRAP_RESAMPLES if experts else PERMUTATIONS
            self._draws[key] = draw(shape, seed=self._seed, experts=experts, resamples=resamples)
        return self._draws[key]


def contrasts(study: Study) -> Iterator[Contrast]:
    """Yield what is compared on all items, factors first."""
    yield from factor_contrasts(study)
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
    for group, measure in observations.measured():
        items = observations.items(group, measure)
        primary = list(primary_contrasts(observations, group, measure, items))
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
