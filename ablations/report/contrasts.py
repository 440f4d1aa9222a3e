"""The contrasts of a study: its primary ones, and the others that its report has, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ablations.study.grouping import StudyModel
from ablations.study.schema import BaselineKind, Rival, Study
from ablations.study.wording import describe_setting, setting_key

EXPERT_KINDS: tuple[BaselineKind, ...] = ("task_expert", "language_expert")
"""Baselines that ``better_expert`` stands for."""


class Contrast(NamedTuple):
    """Two models, or averages over settings, to be compared: first minus second."""

    first: str
    second: str
    first_models: tuple[str, ...]
    second_models: tuple[str, ...]
    rival: str = ""
    """Rival of the first in the study, for a primary comparison; empty for others."""

    names: tuple[str, ...] = ()
    """Parameters in which the sides differ, where each side is an average over settings: settings
    that are equal in all others are matched."""


def contrasts(study: Study, models: Sequence[StudyModel]) -> list[Contrast]:
    """Return the contrasts of a study, primary ones first; each pair of models once."""
    by_models: dict[tuple[tuple[str, ...], ...], Contrast] = {}
    for contrast in (*_primary_contrasts(study, models), *_other_contrasts(study, models)):
        by_models.setdefault((contrast.first_models, contrast.second_models), contrast)
    return [*by_models.values()]


def rivals(study: Study) -> tuple[Rival, ...]:
    """Return the rivals of the recipe, in the order of the study."""
    primary = study.report.primary
    if primary.against or primary.contrasts or study.recipe is None:
        return primary.against
    kinds: list[Rival] = ["soup"] if "soup" in study.baseline else []
    if set(EXPERT_KINDS) & set(study.baseline):
        kinds.append("better_expert")
    if not kinds and len(study.settings()) > 1:
        return ("first_setting",)
    return tuple(kinds) or study.baseline


def compared_languages(listed: Iterable[str], of_cells: Collection[str | None]) -> list[str]:
    """Return the `listed` languages in which a contrast is: those of its cells, else one empty."""
    return [code for code in listed if code in of_cells] or [""]


def primary_tasks(
    study: Study, tasks: Sequence[str], code: str, languages: Mapping[str, str]
) -> list[str]:
    """Return the primary ones among the tasks of a language: those named, or its own first.

    `languages` has the codes of the tasks' own languages.
    """
    if study.report.primary.tasks:
        return [task for task in tasks if task in study.report.primary.tasks]
    listed = study.evaluate.languages.get(code, ())
    preferred = (
        [task for task in tasks if task in listed],
        [task for task in tasks if code and languages[task] == code],
        [task for task in tasks if languages[task] != "en"],
        tasks,
    )
    return next((list(choice[:1]) for choice in preferred if choice), [])


def ordered_tasks(
    tasks: Sequence[str], primary: Sequence[str], languages: Mapping[str, str]
) -> list[str]:
    """Return the tasks of a language as reports show them: `primary` ones first, English last.

    `languages` has the codes of the tasks' own languages.
    """
    return sorted(tasks, key=lambda task: (task not in primary, languages[task] == "en"))


def _primary_contrasts(study: Study, models: Sequence[StudyModel]) -> Iterator[Contrast]:
    primary, settings = study.report.primary, study.settings()
    by_setting = {setting_key(setting): model for model in models for setting in model.given}
    for pair in primary.contrasts:
        first, second = (by_setting[setting_key(settings[number - 1])] for number in pair)
        yield _plain(first, second, rival="setting")
    if study.recipe is None:
        yield from (contrast._replace(rival="base") for contrast in _against_base(models))
    recipes = [model for model in models if model.kind == "recipe"]
    if primary.setting is not None:
        recipes = [model for model in models if primary.setting in model.given]
    for rival in rivals(study):
        if rival == "first_setting":
            between = _between_settings(study, models, primary.parameters)
            yield from (contrast._replace(rival=rival) for contrast in between)
            continue
        for kind in EXPERT_KINDS if rival == "better_expert" else (rival,):
            yield from _against_baselines(kind, recipes, models, rival)


def _other_contrasts(study: Study, models: Sequence[StudyModel]) -> Iterator[Contrast]:
    yield from _against_base(models) if study.recipe is None else ()
    for model in models:
        if model.kind == "recipe":
            for kind in study.baseline:
                yield from _against_baselines(kind, [model], models)
    yield from _between_settings(study, models, ())


def _against_base(models: Sequence[StudyModel]) -> Iterator[Contrast]:
    for base in [model for model in models if model.kind == "base"]:
        yield from (_plain(model, base) for model in models if model.kind != "base")


def _against_baselines(
    kind: str, recipes: Sequence[StudyModel], models: Sequence[StudyModel], rival: str = ""
) -> Iterator[Contrast]:
    """Yield each model against the baselines of a kind that are made of its own experts."""
    baselines = [model for model in models if model.kind == kind]
    for model in recipes:
        for baseline in baselines:
            if all(model.pools.get(role) == names for role, names in baseline.pools.items()):
                yield _plain(model, baseline, rival)


def _between_settings(
    study: Study, models: Sequence[StudyModel], parameters: Sequence[str]
) -> Iterator[Contrast]:
    """Yield every setting against the first, or the first that differs in `parameters` only.

    In a grid of several parameters, every value against the first one, averaged over the others.
    """
    recipes = [model for model in models if model.kind == "recipe"]
    names = dict.fromkeys(name for model in recipes for name in model.setting)
    varied = [
        name
        for name in names
        if len({setting_key(model.setting.get(name)) for model in recipes}) > 1
    ]
    if isinstance(study.vary, dict) and len(varied) > 1:
        for name in varied:
            if not parameters or name in parameters:
                yield from _between_values(name, recipes)
        return
    references: dict[str, StudyModel] = {}
    for model in recipes:
        shared = {name: value for name, value in model.setting.items() if name not in parameters}
        reference = references.setdefault(setting_key(shared) if parameters else "", model)
        if reference is not model:
            yield _plain(model, reference)


def _between_values(name: str, recipes: Sequence[StudyModel]) -> Iterator[Contrast]:
    """Yield every value of a parameter against the first, averaged over the other parameters."""
    by_value: dict[str, list[StudyModel]] = {}
    for model in recipes:
        by_value.setdefault(setting_key(model.setting.get(name)), []).append(model)
    reference, *others = by_value.values()
    for group in others:
        yield Contrast(
            first=describe_setting({name: group[0].setting[name]}),
            second=describe_setting({name: reference[0].setting[name]}),
            first_models=tuple(model.label for model in group),
            second_models=tuple(model.label for model in reference),
            names=(name,),
        )


def _plain(first: StudyModel, second: StudyModel, rival: str = "") -> Contrast:
    return Contrast(first.label, second.label, (first.label,), (second.label,), rival)
