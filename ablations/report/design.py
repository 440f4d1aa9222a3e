"""What a study compares: models, factors and groups. Knows the study; reads no score.

A *model* is a way to make a model from experts (a baseline, or the recipe in one setting); it has
a cell for every pair of experts. A *factor* is a parameter whose values are compared. A *group*
is the models' cells with one target language.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
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
    by_code = {code: tuple(n for n in names if codes.get(n) == code) for code in codes.values()}
    return tuple(
        Group(code, study.experts.task, members)
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

    In a full grid every parameter is a factor, and a level holds all settings with its value:
    comparing two levels compares settings that differ in nothing else. Settings that form no
    grid are the levels of one factor.
    """
    if study.recipe is None:
        return ()
    settings = study.settings()
    models = dict(zip((setting_key(each) for each in settings), recipe_models(study), strict=True))
    names = tuple(dict.fromkeys(name for setting in settings for name in setting))
    values = {name: _distinct(settings, name) for name in names}
    varied = [name for name in names if name in _varied(settings)]
    grid = {
        setting_key(dict(zip(names, combined, strict=True)))
        for combined in itertools.product(*values.values())
    }
    if len(settings) < 2 or not varied:
        return ()
    if grid != set(models):
        told = tuple(varied)
        levels = _levels_of_settings(settings, models, told)
        return (Factor(told, _factor_label(told), levels),)
    return tuple(
        Factor(
            (name,),
            _factor_label((name,)),
            tuple(
                Level(
                    f"{_SHORT.get(name, name)}={describe_value(value)}",
                    value,
                    tuple(
                        models[setting_key(setting)]
                        for setting in settings
                        if setting_key({name: setting[name]}) == setting_key({name: value})
                    ),
                )
                for value in values[name]
            ),
        )
        for name in varied
    )


def _varied(settings: tuple[dict[str, Scalar], ...]) -> set[str]:
    """Return the parameters that are not the same in all settings; absent is a value too."""
    names = {name for setting in settings for name in setting}
    return {name for name in names if len({json.dumps(s.get(name)) for s in settings}) > 1}


def _distinct(settings: tuple[dict[str, Scalar], ...], name: str) -> list[Scalar]:
    found = {json.dumps(s[name]): s[name] for s in settings if name in s}
    return list(found.values())


def _levels_of_settings(
    settings: tuple[dict[str, Scalar], ...], models: Mapping[str, Model], names: tuple[str, ...]
) -> tuple[Level, ...]:
    transition = set(names) == {"bottom_transition", "top_transition"} and len(settings) == 2
    on = [any(setting.get(name) for name in names) for setting in settings]
    labels = [describe_setting({n: s[n] for n in names if n in s}) for s in settings]
    if transition and sorted(on) == [False, True]:
        labels = ["on" if each else "off" for each in on]
    return tuple(
        Level(label, None, (models[setting_key(setting)],))
        for label, setting in zip(labels, settings, strict=True)
    )


def _factor_label(names: tuple[str, ...]) -> str:
    return _NAMES.get(frozenset(names), " and ".join(name.replace("_", " ") for name in names))
