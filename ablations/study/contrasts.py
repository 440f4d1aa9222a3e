"""What a study compares: its primary contrasts, and the others that its report has, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ablations.study.labels import Model, describe_setting, task_language
from ablations.study.schema import BaselineKind, Rival, Study

EXPERT_KINDS: tuple[BaselineKind, ...] = ("task_expert", "language_expert")
"""Baselines that ``better_expert`` stands for."""


class Contrast(NamedTuple):
    """Two models, or averages over settings, to be compared: first minus second."""

    first: str
    second: str
    first_models: tuple[str, ...]
    second_models: tuple[str, ...]
    rival: str = ""
    """What the study compares the first with, for a primary comparison; empty for others."""

    names: tuple[str, ...] = ()
    """Parameters in which the sides differ, where each side is an average over settings: settings
    that are equal in all others are matched."""


def contrasts(study: Study, models: Sequence[Model]) -> list[Contrast]:
    """Return what is compared, primary contrasts first; each pair of models once."""
    found: dict[tuple[tuple[str, ...], ...], Contrast] = {}
    for contrast in (*_primary_contrasts(study, models), *_other_contrasts(study, models)):
        found.setdefault((contrast.first_models, contrast.second_models), contrast)
    return [*found.values()]


def rivals(study: Study) -> tuple[Rival, ...]:
    """Return what the recipe is compared with, in the order of the study."""
    primary = study.report.primary
    if primary.against or primary.contrasts or study.recipe is None:
        return primary.against
    found: list[Rival] = ["soup"] if "soup" in study.baseline else []
    if set(EXPERT_KINDS) & set(study.baseline):
        found.append("better_expert")
    if not found and len(study.settings()) > 1:
        return ("first_setting",)
    return tuple(found) or study.baseline


def primary_tasks(study: Study, tasks: Sequence[str], code: str) -> list[str]:
    """Return the primary ones among the tasks of a language: those named, or its own first."""
    if study.report.primary.tasks:
        return [task for task in tasks if task in study.report.primary.tasks]
    own = study.evaluate.languages.get(code, ())
    preferred = (
        [task for task in tasks if task in own],
        [task for task in tasks if code and task_language(task) == code],
        [task for task in tasks if task_language(task) != "en"],
        tasks,
    )
    return next((list(part[:1]) for part in preferred if part), [])


def ordered_tasks(study: Study, tasks: Sequence[str], code: str) -> list[str]:
    """Return the tasks of a language as reports show them: primary first and English last."""
    if study.report.tasks:
        return [task for task in study.report.tasks if task in tasks]
    primary = primary_tasks(study, tasks, code)
    return sorted(tasks, key=lambda task: (task not in primary, task_language(task) == "en"))


def setting_key(value: Any) -> str:
    """Return a text that is equal for equal settings, or values of them."""
    return json.dumps(value, sort_keys=True)


def _primary_contrasts(study: Study, models: Sequence[Model]) -> Iterator[Contrast]:
    primary = study.report.primary
    by_setting = {setting_key(given): model for model in models for given in model.given}
    settings = study.settings()
    for one, other in primary.contrasts:
        first, second = (by_setting[setting_key(settings[number - 1])] for number in (one, other))
        yield _plain(first.label, second.label, rival="setting")
    if study.recipe is None:
        yield from (c._replace(rival="base") for c in _against_base(models))
    chosen = [model for model in models if model.kind == "recipe"]
    if primary.setting is not None:
        chosen = [by_setting[setting_key(primary.setting)]]
    for rival in rivals(study):
        if rival == "first_setting":
            for contrast in _between_settings(study, models, primary.parameters):
                yield contrast._replace(rival=rival)
            continue
        for kind in EXPERT_KINDS if rival == "better_expert" else (rival,):
            for model in chosen:
                for baseline in _own_baselines(kind, model, models):
                    yield _plain(model.label, baseline.label, rival=rival)


def _other_contrasts(study: Study, models: Sequence[Model]) -> Iterator[Contrast]:
    yield from _against_base(models) if study.recipe is None else ()
    for model in models:
        if model.kind == "recipe":
            for kind in study.baseline:
                for baseline in _own_baselines(kind, model, models):
                    yield _plain(model.label, baseline.label)
    yield from _between_settings(study, models, ())


def _between_settings(
    study: Study, models: Sequence[Model], parameters: Sequence[str]
) -> Iterator[Contrast]:
    """Yield every setting against the first, or the first that differs in `parameters` only.

    In a grid of several parameters, every value against the first one, averaged over the others.
    """
    recipes = [model for model in models if model.kind == "recipe"]
    names = list(dict.fromkeys(name for model in recipes for name in model.setting))
    varied = [n for n in names if len({setting_key(m.setting.get(n)) for m in recipes}) > 1]
    if isinstance(study.vary, dict) and len(varied) > 1:
        for name in [n for n in varied if not parameters or n in parameters]:
            levels: dict[str, list[Model]] = {}
            for model in recipes:
                levels.setdefault(setting_key(model.setting.get(name)), []).append(model)
            (reference, *others) = levels.values()
            for level in others:
                one, other = (
                    describe_setting({name: m[0].setting[name]}) for m in (level, reference)
                )
                sides = [tuple(model.label for model in side) for side in (level, reference)]
                yield Contrast(one, other, sides[0], sides[1], names=(name,))
        return
    first_of: dict[str, Model] = {}
    for model in recipes:
        rest = {n: v for n, v in model.setting.items() if n not in parameters}
        first = first_of.setdefault(setting_key(rest) if parameters else "", model)
        if first is not model:
            yield _plain(model.label, first.label)


def _against_base(models: Sequence[Model]) -> Iterator[Contrast]:
    for base in [model for model in models if model.kind == "base"]:
        yield from (_plain(m.label, base.label) for m in models if m.kind != "base")


def _own_baselines(kind: str, model: Model, models: Sequence[Model]) -> Iterator[Model]:
    """Yield the baselines of a kind that are made of the experts of `model`."""
    for baseline in models:
        if baseline.kind == kind and all(
            model.pools.get(role) == names for role, names in baseline.pools.items()
        ):
            yield baseline


def _plain(first: str, second: str, rival: str = "") -> Contrast:
    return Contrast(first, second, (first,), (second,), rival)
