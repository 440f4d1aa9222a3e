"""What a study compares: models and groups of their cells. Knows the study; reads no score.

A *model* is a way to make a model from experts (a baseline, or the recipe in one setting); it has
a cell for every pair of experts. A *group* is the models' cells with one target language. What
varies between models is in `factors`.
"""

from __future__ import annotations

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
_PLAIN = ("placement",)
"""Parameters whose values say what they are of."""

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

    short: str
    """The same without the recipe's method, which all settings have in common."""


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
    """Return ``middle b=5 u=2``, with the paper's letters for layer counts."""
    return " ".join(
        describe_value(value)
        if name in _PLAIN
        else f"{_SHORT.get(name, name)}={describe_value(value)}"
        for name, value in setting.items()
    )


def has_short_name(name: str) -> bool:
    """Return whether a parameter has a letter of the paper's, which a label then shows."""
    return name in _SHORT


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
    return tuple(
        Model(kind, setting_key({}), _KINDS[kind], _KINDS[kind]) for kind in study.baseline
    )


def recipe_models(study: Study) -> tuple[Model, ...]:
    """Return the recipe in each of its settings; nothing where a study has baselines only."""
    if study.recipe is None:
        return ()
    settings = study.settings()
    names = dict.fromkeys(name for setting in settings for name in setting)
    # Absent is a value too; JSON tells True from 1.
    varied = {
        name
        for name in names
        if len({setting_key({n: s[n] for n in (name,) if n in s}) for s in settings}) > 1
    }
    method = str(study.recipe.get("merge_method", "recipe")).replace("_", " ")
    models = []
    for setting in settings:
        told = describe_setting({name: setting[name] for name in setting if name in varied})
        label = f"{method} {told}".strip()
        models.append(Model("recipe", setting_key(setting), label, told or label))
    return tuple(models)
