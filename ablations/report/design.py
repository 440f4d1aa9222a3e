"""What a study compares: models, factors and groups. Knows the study; reads no score.

A *model* is a way to make a model from experts (a baseline, or the recipe in one setting); it has
a cell for every pair of experts. A *factor* is a parameter whose values are compared. A *group*
is the models' cells with one target language.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablations.study.schema import Kind, Scalar, Study

Setting = Mapping[str, Scalar]

_SHORT = {
    "bottom_layers": "b",
    "top_layers": "u",
    "bottom_transition": "t_b",
    "top_transition": "t_u",
}
SHORT_NOTE = (
    "b, u: layers from the language expert at the bottom (embedding side) and at the top; "
    "t_b, t_u: averaged layers of the transition zones beside them."
)
_NAMES = {
    frozenset(("bottom_layers", "top_layers")): "layer count",
    frozenset(("bottom_transition", "top_transition")): "transition zone",
    frozenset(("bottom_layers",)): "bottom layers",
    frozenset(("top_layers",)): "top layers",
}
_KINDS: Mapping[str, str] = {
    "base": "base",
    "task_expert": "task expert",
    "language_expert": "language expert",
    "soup": "soup",
    "weighted_soup": "weighted soup",
    "ties": "TIES",
}
ROLES: Mapping[str, tuple[str, ...]] = {
    "base": (),
    "task_expert": ("task",),
    "language_expert": ("language",),
}
"""Roles that an unmerged model comes from; every other kind is of both."""


@dataclass(frozen=True)
class Model:
    """A column of the main tables."""

    kind: Kind
    """The study's recipe, or a baseline."""

    setting: str
    """`setting_key` of the varied parameters; that of no parameter for a baseline."""

    label: str
    """In words."""


@dataclass(frozen=True)
class Level:
    """One value of a factor."""

    label: str
    """In words."""

    value: Scalar | None
    """The value; None where several parameters vary together."""

    models: tuple[Model, ...]
    """The models that have it, the other factors in the same order in every level."""


@dataclass(frozen=True)
class Factor:
    """A parameter, or parameters that vary together, whose values are compared."""

    names: tuple[str, ...]
    """Parameters of the recipe."""

    label: str
    """In words."""

    levels: tuple[Level, ...]
    """At least two; the first is what the others are compared with."""


@dataclass(frozen=True)
class Group:
    """Cells with one target language."""

    language: str | None
    """Code of the language; None where the study names none."""

    label: str
    """The same in words, where a study has several groups; else empty."""

    task_experts: tuple[str, ...]
    """In the order of the study."""

    language_experts: tuple[str, ...]
    """Those of this language."""


def setting_key(setting: Setting) -> str:
    """Return a key that is equal for equal settings and tells True from 1."""
    return json.dumps(dict(sorted(setting.items())))


def describe_value(value: Scalar) -> str:
    """Return a value as a study file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe_setting(setting: Setting) -> str:
    """Return ``b=5 u=2``, with the paper's letters for layer counts."""
    return " ".join(
        f"{_SHORT.get(name, name)}={describe_value(value)}" for name, value in setting.items()
    )


def uses_short_names(study: Study) -> bool:
    """Return whether `SHORT_NOTE` has to stand somewhere."""
    return any(name in _SHORT for setting in study.settings() for name in setting)


def groups(study: Study) -> tuple[Group, ...]:
    """Return a group per target language, or one of all where the study names no language."""
    codes = study.experts.languages()
    names = study.experts.language_names()
    tasks = study.experts.task
    by_code = {code: tuple(n for n in names if codes.get(n) == code) for code in codes.values()}
    return tuple(
        Group(code, code if code is not None and len(by_code) > 1 else "", tasks, members)
        for code, members in (by_code.items() if codes else [(None, names)])
    )


def baselines(study: Study) -> tuple[Model, ...]:
    """Return the models that the recipe is compared with."""
    return tuple(Model(kind, setting_key({}), _KINDS[kind]) for kind in study.baseline)


def recipe_models(study: Study) -> tuple[Model, ...]:
    """Return the recipe in each of its settings; nothing where a study has baselines only."""
    if study.recipe is None:
        return ()
    settings = study.settings()
    varied = _varied(settings)
    method = str(study.recipe.get("merge_method", "recipe")).replace("_", " ")
    models = []
    for setting in settings:
        told = describe_setting({name: setting[name] for name in setting if name in varied})
        models.append(Model("recipe", setting_key(setting), f"{method} {told}".strip()))
    return tuple(models)


def factors(study: Study) -> tuple[Factor, ...]:
    """Return what the study varies.

    Parameters that only vary together (bottom and top layers in ``{3,1}, {5,2}``) are one factor.
    Where the factors form a full grid, a level holds all settings that have it: comparing two
    levels compares settings that differ in nothing else. Settings that form no grid are the
    levels of a single factor.
    """
    if study.recipe is None:
        return ()
    settings = study.settings()
    bundles = _bundles(settings)
    if not bundles:
        return ()
    levels = {bundle: list(dict.fromkeys(_part(s, bundle) for s in settings)) for bundle in bundles}
    if math.prod(map(len, levels.values())) != len(settings):
        everything = tuple(name for bundle in bundles for name in bundle)
        levels = {everything: [_part(setting, everything) for setting in settings]}
    models = tuple(zip(settings, recipe_models(study), strict=True))
    return tuple(
        Factor(
            names,
            _NAMES.get(frozenset(names), " and ".join(name.replace("_", " ") for name in names)),
            tuple(
                Level(
                    label,
                    json.loads(part)[names[0]] if len(names) == 1 else None,
                    tuple(model for setting, model in models if _part(setting, names) == part),
                )
                for part, label in zip(parts, _level_labels(names, parts), strict=True)
            ),
        )
        for names, parts in levels.items()
    )


def _varied(settings: Sequence[Setting]) -> list[str]:
    """Return the parameters that are not the same in all settings; absent is a value too."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({_part(each, (name,)) for each in settings}) > 1]


def _bundles(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """Return the varied parameters, together where the value of each tells that of the other."""
    bundles: list[tuple[str, ...]] = []
    for name in _varied(settings):
        for index, bundle in enumerate(bundles):
            joined = (*bundle, name)
            numbers = {len({_part(each, names) for each in settings}) for names in (bundle, joined)}
            numbers.add(len({_part(each, (name,)) for each in settings}))
            if len(numbers) == 1:
                bundles[index] = joined
                break
        else:
            bundles.append((name,))
    return bundles


def _part(setting: Setting, names: Sequence[str]) -> str:
    """Return the part of a setting that `names` are; JSON, which tells True from 1."""
    return json.dumps({name: setting[name] for name in names if name in setting})


def _level_labels(names: tuple[str, ...], parts: Sequence[str]) -> list[str]:
    settings = [json.loads(part) for part in parts]
    on = [any(setting.values()) for setting in settings]
    if set(names) == {"bottom_transition", "top_transition"} and sorted(on) == [False, True]:
        return ["on" if each else "off" for each in on]
    return [describe_setting(setting) for setting in settings]
