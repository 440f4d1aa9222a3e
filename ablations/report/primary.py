"""Which comparisons answer a study's question, and on which items. Knows no test and no layout.

By default they are the swap against the soup and against the better expert, on the first task in
the target language. Whatever is the best of several is chosen on one half of the items and tested
on the other half: on the items that it was chosen on, the best looks better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ablations.report.baselines import against_base, baseline_of
from ablations.report.design import (
    Group,
    Model,
    describe_setting,
    recipe_models,
    setting_key,
    told_names,
    varied_names,
)
from ablations.report.factors import difference, factors, settled
from ablations.report.observations import Item, Measure, Observations
from ablations.study.schema import EXPERTS, BaselineKind, Rival, Study
from layerswap_method.errors import nearest

_EXPERTS: tuple[BaselineKind, ...] = ("task_expert", "language_expert")


@dataclass(frozen=True)
class Choice:
    """What of a contrast is the best of several, by one half of the items."""

    items: int
    """That it was chosen on, which are not those of the test."""

    setting: str = ""
    """The chosen setting, in words; empty where there was one only."""

    settings: int = 1
    """Settings that it was chosen from."""

    tied: int = 1
    """Of them, those that score as well on the items of the choice, with itself."""

    experts: int = 1
    """Experts that the better one was chosen from."""


@dataclass(frozen=True)
class Contrast:
    """Two models, or averages of models, to be compared: first minus second."""

    factor: str
    """What differs, in words; ``""`` for the recipe against a baseline."""

    first: str
    """In words."""

    second: str
    """In words."""

    first_models: tuple[Model, ...]
    """Settings to average over."""

    second_models: tuple[Model, ...]
    """As many, in the same order, or one."""

    shared: str = ""
    """What both have in common of what the study varies, in words."""

    rival: Rival | None = None
    """What the swap is compared with, as a study file names it; None for an exploratory one."""

    choice: Choice | None = None
    """What was chosen; None where nothing was."""

    @property
    def chosen_on(self) -> int:
        """Return the items that the first or the second was chosen on; 0 where nothing was."""
        return 0 if self.choice is None else self.choice.items


@dataclass(frozen=True)
class _Candidate:
    """Models of which the best is looked for."""

    label: str
    short: str
    models: tuple[Model, ...]


def primary_contrasts(
    observations: Observations,
    group: Group,
    measure: Measure,
    items: Sequence[Item],
    *,
    seed: int,
) -> Iterator[tuple[Contrast, Sequence[Item]]]:
    """Yield the primary contrasts of a measure, each with the items to test it on.

    Without a recipe they are the experts against the base. Nothing is yielded for a measure that
    is not primary, and for what has to be chosen where no candidate has a score.
    """
    study = observations.run.study
    if measure not in primary_measures(observations, group):
        return
    for model, base in against_base(study):
        yield Contrast("", model.label, base.label, (model,), (base,), rival="base"), items
    if study.recipe is None:
        return
    against = rivals(study)
    if "first_setting" in against:
        for contrast in factor_contrasts(study, study.report.primary.parameters):
            yield replace(contrast, rival="first_setting"), items
    for contrast in _named_contrasts(study):
        yield contrast, items
    rest = [rival for rival in against if rival != "first_setting"]
    if not rest:
        return
    settings = _candidates(study)
    chooser = _Chooser(observations, group, measure, items, seed)
    different = chooser.different(settings)
    swap, tied = chooser.best(different)
    if swap is None:
        return
    for rival in rest:
        kinds = _EXPERTS if rival == "better_expert" else (rival,)
        known = [
            _Candidate(
                *2 * (baseline_of(kind, swap.models[0]).label,),
                tuple(dict.fromkeys(baseline_of(kind, model) for model in swap.models)),
            )
            for kind in study.baseline
            if kind in kinds
        ]
        other, _ = chooser.best(known)
        if other is None:
            continue
        label = swap.label
        choice = Choice(len(chooser.choosing), experts=len(known))
        if (number := len(different)) > 1:
            which = f"best of {number}" if tied < number else f"first of {number} tied"
            label = f"{which} settings ({swap.short})"
            choice = replace(choice, setting=swap.short, settings=number, tied=tied)
        is_chosen = choice.settings * choice.experts > 1
        yield (
            Contrast(
                *("", label),
                f"better expert ({other.label})" if len(known) > 1 else other.label,
                swap.models,
                other.models if len(other.models) == 1 else _matched(swap, other),
                rival=rival,
                choice=choice if is_chosen else None,
            ),
            chooser.testing if is_chosen else items,
        )


def _named_contrasts(study: Study) -> Iterator[Contrast]:
    """Yield the pairs of settings that the study names, as comparisons with a first setting.

    Experts that both settings of a pair have are said once.
    """
    settings, models = study.settings(), recipe_models(study)
    shown = told_names(settings)
    for pair in study.report.primary.contrasts:
        one, other = (number - 1 for number in pair)
        differing = varied_names((settings[one], settings[other]))
        both = [name for name in shown if name.startswith(EXPERTS) and name not in differing]
        told = [name for name in shown if name not in both]
        yield Contrast(
            "setting",
            describe_setting(settings[one], told),
            describe_setting(settings[other], told),
            *((models[one],), (models[other],)),
            describe_setting(settings[one], both),
            rival="first_setting",
        )


def factor_contrasts(study: Study, parameters: Collection[str] = ()) -> Iterator[Contrast]:
    """Yield the levels of every factor against its first level.

    Args:
        study: with the factors.
        parameters: only levels that differ in one of them are wanted; all where there are none.
    """
    for factor in factors(study):
        first, *others = factor.levels
        for level in others:
            if parameters and setting_key(first.setting, parameters) == setting_key(
                level.setting, parameters
            ):
                continue
            what, one, other, shared = difference(factor, level)
            yield Contrast(what, one, other, level.models, first.models, shared)


def primary_measures(observations: Observations, group: Group) -> tuple[Measure, ...]:
    """Return the measures that the study names, or the first one in the target language."""
    measures = observations.measures(group)
    study = observations.run.study
    named = study.report.primary.tasks
    if named:
        return tuple(each for each in measures if each.task in named)
    asked = study.evaluate.languages.get(group.language or "", ())
    code = group.language
    preferred = (
        [each for each in measures if each.task in asked],
        [each for each in measures if code is not None and last_code(each.task) == code],
        [each for each in measures if last_code(each.task) != "en"],
        list(measures),
    )
    return tuple(next((found[:1] for found in preferred if found), []))


def primary_problems(observations: Observations) -> tuple[str, ...]:
    """Return which tasks of `report.primary` no cell has answered."""
    known = dict.fromkeys(measure.task for _, measure in observations.measured())
    return tuple(
        f"report.primary.tasks names {task!r}, which no cell has answered{nearest(task, known)}; "
        f"the tasks are {', '.join(known)}. Correct the study file and run it again: finished work "
        "is reused."
        for task in observations.run.study.report.primary.tasks
        if task not in known
    )


def last_code(task: str) -> str:
    """Return the last two-letter part of a task's name, which is its language; else empty."""
    codes = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    return codes[-1] if codes else ""


def halves(items: Sequence[Item], seed: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return `items` in two halves at random, each in the order given; equal for equal seeds."""
    order = np.random.default_rng(seed).permutation(len(items))
    cut = len(items) // 2
    one, other = (tuple(items[at] for at in sorted(part)) for part in (order[:cut], order[cut:]))
    return one, other


class _Chooser:
    """Chooses by the average score on one half of the items."""

    def __init__(
        self,
        observations: Observations,
        group: Group,
        measure: Measure,
        items: Sequence[Item],
        seed: int,
    ) -> None:
        self._observations, self._group, self._measure = observations, group, measure
        self.choosing, self.testing = halves(items, seed)

    def different(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the candidates that have a score; of those that are one model the first."""
        found: dict[tuple[object, ...], _Candidate] = {}
        for each in candidates:
            block = self._observations.block(
                each.models, self._group, self._measure, self.choosing or self.testing
            )
            if block is not None:
                found.setdefault(tuple(block.weights.flat), each)
        return list(found.values())

    def best(self, candidates: Sequence[_Candidate]) -> tuple[_Candidate | None, int]:
        """Return the only candidate, or the first with the best average, and how many have it.

        None where no candidate has a score.
        """
        if len(candidates) < 2:
            return next(iter(candidates), None), 1
        sign = 1 if self._measure.higher_is_better else -1
        scores = [
            (sign * block.average(), each)
            for each in candidates
            if (
                block := self._observations.block(
                    each.models, self._group, self._measure, self.choosing
                )
            )
        ]
        top = max((score for score, _ in scores), default=0.0)
        best = [each for score, each in scores if score == top]
        return next(iter(best), None), len(best)


def rivals(study: Study) -> tuple[Rival, ...]:
    """Return what the swap is compared with, in the order of the study; nothing without a swap."""
    if study.recipe is None:
        return ()
    named = study.report.primary.against
    if named:
        return named
    if study.report.primary.contrasts:
        return ()
    found: list[Rival] = ["soup"] if "soup" in study.baseline else []
    if set(_EXPERTS) & set(study.baseline):
        found.append("better_expert")
    if not found and len(settled(study)) > 1:
        return ("first_setting",)
    return tuple(found) or study.baseline


def _candidates(study: Study) -> list[_Candidate]:
    """Return the settings of the recipe; those that differ by their seed only are one."""
    found = settled(study)
    names = told_names([setting for setting, _ in found])
    wanted = study.report.primary.setting
    if wanted is not None:
        by_key = zip(study.settings(), recipe_models(study), strict=True)
        (named,) = [m for s, m in by_key if setting_key(s) == setting_key(wanted)]
        found = [(setting, models) for setting, models in found if named in models]
    candidates = []
    for setting, models in found:
        told = describe_setting(setting, names)
        label = models[0].label if len(models) == 1 else told
        candidates.append(_Candidate(label, told or label, models))
    return candidates


def _matched(swap: _Candidate, other: _Candidate) -> tuple[Model, ...]:
    kind = other.models[0].kind
    assert kind != "recipe"
    return tuple(baseline_of(kind, model) for model in swap.models)
