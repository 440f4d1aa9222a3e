"""What a study varies: factors, their levels, and how two levels differ. Reads no score.

A *factor* is a parameter or a role of experts, or several that vary together, whose values are
compared. Seeds are
none: they are draws of one setting, which are averaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.report.design import (
    SHORT,
    Model,
    describe_setting,
    describe_value,
    recipe_models,
    setting_key,
    varied_names,
    with_other_end,
)
from ablations.study.schema import EXPERTS, Scalar, Setting, Study, Value

_DRAW = "seed"
_NAMES = {
    frozenset(("bottom_layers", "top_layers")): "layer count",
    frozenset(("bottom_transition", "top_transition")): "transition zone",
    frozenset(("bottom_layers",)): "bottom layers",
    frozenset(("top_layers",)): "top layers",
    frozenset(("experts.task",)): "task expert",
    frozenset(("experts.language",)): "language expert",
    frozenset(("experts.base",)): "base",
}


@dataclass(frozen=True)
class Level:
    """One value of a factor."""

    label: str
    """In words."""

    value: Scalar | None
    """The value; None where several parameters vary together, and for several experts."""

    models: tuple[Model, ...]
    """The models that have it. The other factors stand in the same order in every level; a model
    stands several times where other settings have more draws, so that all weigh alike."""

    setting: Setting
    """The part of a setting that it is."""


@dataclass(frozen=True)
class Factor:
    """A parameter, or parameters that vary together, whose values are compared."""

    names: tuple[str, ...]
    """Parameters of the recipe, or roles of experts (``experts.task``)."""

    label: str
    """In words."""

    levels: tuple[Level, ...]
    """At least two; the first is what the others are compared with."""

    bundles: tuple[tuple[str, ...], ...]
    """`names`, in groups that vary together; several where the settings form no grid."""


def factors(study: Study) -> tuple[Factor, ...]:
    """Return what the study varies.

    Parameters that only vary together (bottom and top layers in ``{3,1}, {5,2}``) are one factor.
    Where the factors form a full grid, a level holds all settings that have it: comparing two
    levels compares settings that differ in nothing else. Settings that form no grid are the
    levels of a single factor. Settings that differ by their seed only are one, unless there is
    nothing else to compare.
    """
    if study.recipe is None:
        return ()
    points = settled(study)
    settings = [setting for setting, _ in points]
    bundles = _bundles(settings)
    if not bundles:
        return ()
    levels = {
        bundle: list(dict.fromkeys(setting_key(s, bundle) for s in settings)) for bundle in bundles
    }
    if math.prod(map(len, levels.values())) == len(settings):
        # However the study lists them, settings are matched in the order of the factors.
        points.sort(key=lambda point: [levels[b].index(setting_key(point[0], b)) for b in bundles])
        return tuple(_factor((bundle,), parts, points) for bundle, parts in levels.items())
    everything = tuple(name for bundle in bundles for name in bundle)
    return (_factor(tuple(bundles), [setting_key(s, everything) for s in settings], points),)


def most_draws(study: Study) -> int:
    """Return how many seeds a level's setting has at most; 1 where seeds are not averaged."""
    if study.recipe is None:
        return 1
    return max(len(set(models)) for _, models in settled(study))


def over_fact(study: Study, factor: Factor, name: str) -> Factor:
    """Return a factor by a measured fact of its experts: levels of one value are one level.

    Args:
        study: with the facts.
        factor: whose levels choose the experts.
        name: ``experts.ROLE.FACT``, of a role in `factor.names`.
    """
    found: dict[float, Level] = {}
    for level in factor.levels:
        value = study.fact(name, level.setting)
        if value is not None:
            known = found.get(value)
            models = level.models if known is None else (*known.models, *level.models)
            found[value] = Level(f"{value:g}", value, models, level.setting)
    _, role, fact = name.split(".", 2)
    expert = "base" if role == "base" else f"{role} expert"
    label = f"{fact.replace('_', ' ')} of the {expert}"
    return Factor((name,), label, tuple(found.values()), factor.bundles)


def difference(factor: Factor, level: Level) -> tuple[str, str, str, str]:
    """Return how `level` differs from the first level of `factor`, in words.

    Returns:
        What differs; the level and the first level, by that only; and what they have in common,
        empty where they differ in all that varies.
    """
    first = factor.levels[0]
    if len(factor.bundles) == 1:
        return factor.label, level.label, first.label, ""
    changed = [
        bundle
        for bundle in factor.bundles
        if setting_key(level.setting, bundle) != setting_key(first.setting, bundle)
    ]
    names = {name for bundle in changed for name in bundle}
    one, other = (
        {name: value for name, value in setting.items() if name in names}
        for setting in (level.setting, first.setting)
    )
    shared = {name: value for name, value in first.setting.items() if name not in names}
    if len(changed) == 1:
        one_label, other_label = (_level_label(changed[0], part) for part in (one, other))
    else:
        one_label, other_label = (
            describe_setting(part, names) or "not set" for part in (one, other)
        )
    return _label(changed), one_label, other_label, describe_setting(shared)


def settled(study: Study) -> list[tuple[Setting, tuple[Model, ...]]]:
    """Return the settings without their seed, each with the models of its seeds, all as many."""
    settings, models = study.settings(), recipe_models(study)
    found: dict[str, tuple[Setting, dict[str, Model]]] = {}
    for setting, model in zip(settings, models, strict=True):
        plain = {name: value for name, value in setting.items() if name != _DRAW}
        _, drawn = found.setdefault(setting_key(plain), (plain, {}))
        drawn[setting_key(setting, (_DRAW,))] = model
    if len(found) == 1:
        return [(setting, (model,)) for setting, model in zip(settings, models, strict=True)]
    number = math.lcm(*(len(drawn) for _, drawn in found.values()))
    # By seed, so that levels with the same seeds are compared seed by seed.
    return [
        (setting, tuple(model for _, model in sorted(drawn.items())) * (number // len(drawn)))
        for setting, drawn in found.values()
    ]


def _factor(
    bundles: tuple[tuple[str, ...], ...],
    parts: Sequence[str],
    points: Sequence[tuple[Setting, tuple[Model, ...]]],
) -> Factor:
    names = tuple(name for bundle in bundles for name in bundle)
    levels = []
    settings: list[Setting] = [json.loads(part) for part in parts]
    labels = [
        _level_label(names, setting) if len(bundles) == 1 else describe_setting(setting)
        for setting in settings
    ]
    if names in (("bottom_layers",), ("top_layers",)):
        every = [setting for setting, _ in points]
        labels = [describe_setting(with_other_end(setting, every)) for setting in settings]
    if set(names) == {"bottom_transition", "top_transition"}:
        on = [any(setting.values()) for setting in settings]
        if sorted(on) == [False, True]:
            labels = ["on" if each else "off" for each in on]
    for part, setting, label in zip(parts, settings, labels, strict=True):
        levels.append(
            Level(
                label,
                _scalar(setting.get(names[0])) if len(names) == 1 else None,
                tuple(
                    m
                    for point, models in points
                    if setting_key(point, names) == part
                    for m in models
                ),
                setting,
            )
        )
    return Factor(names, _label(bundles), tuple(levels), bundles)


def _scalar(value: Value | None) -> Scalar | None:
    return value if isinstance(value, (bool, int, float, str)) else None


def _label(bundles: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(
        _NAMES.get(
            frozenset(bundle),
            " and ".join(name.removeprefix(EXPERTS).replace("_", " ") for name in bundle),
        )
        for bundle in bundles
    )


def _level_label(names: Sequence[str], setting: Setting) -> str:
    """Return the value alone where the factor's own name says what it is of."""
    if not setting:
        return "not set"
    if len(names) == 1 and not (names[0] in SHORT or names[0].startswith(EXPERTS)):
        return describe_value(setting[names[0]])
    return describe_setting(setting, names)


def _bundles(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """Return the varied parameters, together where the value of each tells that of the other."""
    bundles: list[tuple[str, ...]] = []
    for name in varied_names(settings):
        for index, bundle in enumerate(bundles):
            joined = (*bundle, name)
            numbers = {
                len({setting_key(each, names) for each in settings})
                for names in (bundle, joined, (name,))
            }
            if len(numbers) == 1:
                bundles[index] = joined
                break
        else:
            bundles.append((name,))
    return bundles
