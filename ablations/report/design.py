"""What a study compares: models and groups of their cells. Knows the study; reads no score.

A *model* is a way to make a model from experts (a baseline, or the recipe in one setting); it has
a cell for every pair of its experts. A *group* is the models' cells with one target language. What
varies between models is in `factors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ablations.report.names import language_name
from ablations.study.documents import DELTA_REVERT, LAYER_SWAP
from ablations.study.schema import (
    BASELINE_ROLES,
    EXPERTS,
    SUGGEST,
    Kind,
    Setting,
    Study,
    Value,
)
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.plan import format_layers

SHORT = {
    "bottom_layers": "b",
    "top_layers": "u",
    "bottom_transition": "t_b",
    "top_transition": "t_u",
}
"""The paper's letters, which labels show."""

WHOLE_EXPERT = "whole expert"
"""What a setting of `delta_revert` that sends nothing back to the base is called."""

_PLAIN = ("placement",)
"""Parameters whose values say what they are of."""

_NUMBERED = re.compile(r"(.*?_)(0|[1-9][0-9]*)")
"""Names of experts that differ by a number at their end."""

_ENDS = frozenset(("bottom_layers", "top_layers"))
"""Counts of which a label has both or none: one alone does not say what was merged."""

RECIPE_ROLES = ("task", "language", "base")
"""Roles of the experts that a cell of the recipe names."""


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

    task: tuple[str, ...]
    """Task experts that it comes from, in the order of its setting."""

    language: tuple[str, ...]
    """Language experts likewise, of all languages."""

    base: str
    """The base likewise; empty for none."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Of the experts that it comes from."""
        return RECIPE_ROLES if self.kind == "recipe" else BASELINE_ROLES[self.kind]


@dataclass(frozen=True)
class Group:
    """Cells with one target language."""

    language: str | None
    """Code of the language; None where the study names none."""

    label: str
    """The same in words, where a study has several groups; else empty."""

    task_experts: int
    """Task experts of a setting, at most."""

    language_experts: int
    """Those of this language, likewise."""


def setting_key(setting: Setting, names: Iterable[str] | None = None) -> str:
    """Return a key that is equal for equal settings and tells True from 1.

    Args:
        setting: name -> value.
        names: of the part of it that counts, in the order of the key; None for all, sorted.
    """
    chosen = sorted(setting) if names is None else names
    return json.dumps({name: setting[name] for name in chosen if name in setting})


def varied_names(settings: Sequence[Setting]) -> list[str]:
    """Return the names that are not the same in all settings; absent is a value too."""
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [name for name in names if len({setting_key(each, (name,)) for each in settings}) > 1]


def describe_value(value: Value) -> str:
    """Return a value as a study file writes it; experts ``a_1, a_2, a_3`` as ``a_1-3``."""
    if isinstance(value, (tuple, list)):
        found = [_NUMBERED.fullmatch(name) for name in value]
        numbers = [int(each[2]) for each in found if each is not None]
        stems = {each[1] for each in found if each is not None}
        if len(numbers) == len(value) > 1 == len(stems) and numbers == sorted(set(numbers)):
            return f"{stems.pop()}{format_layers(numbers)}"
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def told_names(settings: Sequence[Setting]) -> list[str]:
    """Return the names that a label shows: what varies, and b and u together."""
    varied = set(varied_names(settings))
    shown = varied | _ENDS if varied & _ENDS else varied
    return [name for name in dict.fromkeys(n for each in settings for n in each) if name in shown]


def with_other_end(part: Setting, settings: Sequence[Setting]) -> Setting:
    """Return a part of a setting, and the other of b and u where all settings have the same."""
    other = _ENDS - part.keys()
    if len(other) != 1 or other & set(varied_names(settings)):
        return part
    both = {**settings[0], **part}
    return {name: both[name] for name in SHORT if name in part or (name in other and name in both)}


def describe_setting(setting: Setting, names: Collection[str] | None = None) -> str:
    """Return ``middle b=5 u=2``, with the paper's letters for layer counts.

    Args:
        setting: name -> value.
        names: of what is told; None for all of it.
    """
    if names is not None:
        setting = {name: value for name, value in setting.items() if name in names}
        if set(names) - set(setting) and dict(setting) == {"keep_fraction": 1}:
            return WHOLE_EXPERT
    parts = (
        describe_value(value)
        if name in _PLAIN
        else "suggested" * bool(value)
        if name == SUGGEST
        else f"{SHORT.get(name, name.removeprefix(EXPERTS))}={describe_value(value)}"
        for name, value in setting.items()
    )
    return " ".join(filter(None, parts))


def merge_notes(study: Study, num_layers: int | None) -> tuple[str, ...]:
    """Return what the letters in labels mean, and the layer counts that all merges share.

    Nothing where no label has a letter and no count is shared.

    Args:
        study: by what was merged (`ablations.report.merged`).
        num_layers: of the model.
    """
    shared = shared_counts(study)
    names = {name for setting in study.settings() for name in setting} | shared.keys()
    if not names & SHORT.keys():
        return ()
    of = "" if num_layers is None else f" of {num_layers}"
    is_revert = (study.recipe or {}).get("merge_method") == DELTA_REVERT
    to = "that go back to the base" if is_revert else "from the language expert"
    text = f"b, u: layers{of} {to} at the bottom (embedding side) and the top"
    if names & {"bottom_transition", "top_transition"}:
        text += "; t_b, t_u: averaged layers beside them"
    lines = [f"{text}."]
    if shared:
        which = "Every merge has" if len(study.settings()) > 1 else "The merge has"
        lines.append(f"{which} {describe_setting(shared)}.")
    return tuple(lines)


def shared_counts(study: Study) -> dict[str, Value]:
    """Return the layer counts that all merges have in common and that no label shows."""
    settings = study.settings()
    told = set(told_names(settings))
    found = [counts for each in settings if (counts := layer_counts(study, each))]
    if not found:
        return {}
    return {
        name: count
        for name, count in found[0].items()
        if name not in told
        and all(counts.get(name) == count for counts in found)
        and (count or (name in _ENDS and not told & _ENDS and any(map(found[0].get, _ENDS))))
    }


def layer_counts(study: Study, setting: Setting) -> dict[str, Value]:
    """Return the layer counts of a merge, written or not; nothing where it is made without them."""
    recipe = study.recipe or {}
    method, written = recipe.get("merge_method"), recipe.get("parameters")
    given = {**(written if isinstance(written, Mapping) else {}), **setting}
    if method == DELTA_REVERT:
        return {name: given.get(name, 0) for name in SHORT if name in _ENDS}
    if method != LAYER_SWAP or given.get(SUGGEST):
        return {}
    if given.get("placement") in ("soup", "delta_share", "layers"):
        return {}
    fields = LayerSwapSpec.model_fields
    return {name: given.get(name, fields[name].default) for name in SHORT}


def varies_experts(study: Study) -> bool:
    """Return whether some setting chooses its experts."""
    return any(name.startswith(EXPERTS) for setting in study.settings() for name in setting)


def groups(study: Study) -> tuple[Group, ...]:
    """Return a group per target language, or one of all where the study names no language."""
    codes = study.experts.languages()
    pools = [study.pools(setting) for setting in study.settings()]
    task_teams = [each.task for each in pools]
    language_teams = [each.language_names() for each in pools]
    if study.recipe is None:
        task_teams, language_teams = families(pools[0].task), families(language_teams[0])
    tasks = max(map(len, task_teams), default=1) or 1
    number_of = {
        code: max((sum(codes.get(n) == code for n in team) for team in language_teams), default=0)
        for code in (dict.fromkeys(codes.values()) if codes else [None])
    }
    known = {code: number for code, number in number_of.items() if number}
    number_of = known or dict.fromkeys(number_of, 1)
    return tuple(
        Group(code, language_name(code) if code and len(number_of) > 1 else "", tasks, number)
        for code, number in number_of.items()
    )


def recipe_models(study: Study) -> tuple[Model, ...]:
    """Return the recipe in each of its settings; nothing where a study has baselines only."""
    if study.recipe is None:
        return ()
    settings = study.settings()
    names = told_names(settings)
    method = str(study.recipe.get("merge_method", "recipe")).replace("_", " ")
    models = []
    for setting in settings:
        told = describe_setting(setting, names)
        label = f"{method} {told}".strip()
        pools = study.pools(setting)
        models.append(
            Model(
                *("recipe", setting_key(setting), label, told or label),
                *(pools.task, pools.language_names(), pools.base),
            )
        )
    return tuple(models)


def families(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return experts by their name without the number at its end."""
    found: dict[str, list[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        found.setdefault(name if numbered is None else numbered[1], []).append(name)
    return [tuple(each) for each in found.values()]
