"""What the models of a study are called in reports, and which cells are one model.

A *model* is one way to make a model from experts (the recipe in one setting, or a baseline); its
cells are the pairs of experts, and the seeds, that it was made with.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ablations.study.documents import merge_counts
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Kind, Pools, Setting, Study, Value
from ablations.tasks.catalog import PREFIX, TITLES, read_languages
from layerswap_method.methods.delta_revert import NAME as DELTA_REVERT
from layerswap_method.methods.layer_swap import LETTERS
from layerswap_method.plan import format_layers

if TYPE_CHECKING:  # a plan as it is written down
    from ablations.runner.records import RunFile

_NUMBERED = re.compile(r"(.*?_)(0|[1-9][0-9]*)")
_SEED = "seed"
_ENDS = {"bottom_layers", "top_layers"}


@dataclass(frozen=True)
class Model:
    """A model of a study."""

    label: str
    """Name in words, unique in the study."""

    kind: Kind
    """``recipe``, or the kind of baseline."""

    setting: Setting
    """What `vary` says, with the layer counts of the model at hand and without the seed."""

    pools: Mapping[str, tuple[str, ...]]
    """Role -> names of the experts that it is made of; only the roles that it has."""

    cells: tuple[str, ...]
    """Labels of its cells."""

    given: tuple[Setting, ...] = ()
    """Its settings as the study file has them; several where seeds or `same` are joined."""

    same: tuple[Setting, ...] = ()
    """Later settings with the same weights, which are not shown by themselves."""


def models_of(plan: RunFile) -> tuple[Model, ...]:
    """Return the models of a study, baselines first.

    Settings that differ by their seed only are one model. Settings that come to the same weights
    with every pair of experts (layer counts on a small model) are one model too: the first.
    """
    cells = {cell.label: cell for cell in plan.cells}
    places = {label: (cell.experts, cell.values.get(_SEED)) for label, cell in cells.items()}
    by_label: dict[str, Model] = {}
    for model in (*_baselines(plan), *_recipes(plan)):
        known = by_label.get(model.label, replace(model, cells=(), given=()))
        taken = [places[label] for label in known.cells]
        more = (label for label in model.cells if places[label] not in taken)
        given = (*known.given, *model.given)
        by_label[model.label] = replace(known, cells=(*known.cells, *more), given=given)
    models: dict[object, Model] = {}
    for model in by_label.values():
        key: object = model.label
        if model.cells and model.kind == "recipe":
            own = (cells[label] for label in model.cells)
            key = frozenset((setting_key(cell.experts), cell.weights_key) for cell in own)
        if (known := models.setdefault(key, model)) is not model:
            given, same = (*known.given, *model.given), (*known.same, model.setting)
            models[key] = replace(known, given=given, same=same)
    return tuple(models.values())


def setting_key(value: object) -> str:
    """Return a text that is equal for equal settings, or values of them."""
    return json.dumps(value, sort_keys=True)


def cell_names(plan: RunFile) -> dict[str, str]:
    """Return label of a cell -> its name in a report: its experts, where a role has several.

    Cells that a report leaves out have no name.
    """
    cells = {cell.label: cell for cell in plan.cells}
    used = {(role, name) for cell in plan.cells for role, name in cell.experts.items()}
    roles = [role for role, _ in used]
    has_bases = roles.count("base") > 1
    is_one = not has_bases and all(roles.count(role) < 2 for role in ("task", "language"))
    names: dict[str, str] = {}
    for model in models_of(plan):
        for label in model.cells:
            cell, is_recipe = cells[label], model.kind == "recipe"
            named = (role for role in model.pools if role != "base" or has_bases)
            experts = "+".join(cell.experts[role] for role in named)
            parts = [model.label if is_recipe else kind_text(cell.kind)]
            if experts and not is_one:
                parts.insert(0 if is_recipe else 1, experts)
            if _SEED in cell.values and len(model.cells) > 1:
                parts.append(f"seed={cell.values[_SEED]}")
            names.setdefault(label, " ".join(parts))
    return names


def merge_note(study: Study, num_layers: int | None) -> str:
    """Return what the letters in labels mean, and the layer counts that all merges share."""
    settings = [merge_counts(study, setting, num_layers) for setting in study.settings()]
    names = {name for counts in settings for name in counts}
    if not names:
        return ""
    of = "" if num_layers is None else f" of {num_layers}"
    is_revert = (study.recipe or {}).get("merge_method") == DELTA_REVERT
    to = "set back to the base" if is_revert else "from the language expert"
    note = f"b, u: layers{of} {to} at the bottom (embedding side) and the top"
    if any(counts.get("bottom_transition") for counts in settings):
        note += "; t_b, t_u: averaged layers next to them"
    first, *others = settings
    shared = {
        name: first[name]
        for name in LETTERS
        if first.get(name) and all(counts.get(name) == first[name] for counts in others)
    }
    which = "every merge has" if others else "the merge has"
    return f"{note}; {which} {describe_setting(shared)}." if shared else f"{note}."


def describe_setting(setting: Setting) -> str:
    """Return ``middle b=5 u=2``, with the paper's letters for layer counts."""
    return " ".join(
        describe_value(value)
        if name == "placement"
        else f"{LETTERS.get(name, name.removeprefix(EXPERTS))}={describe_value(value)}"
        for name, value in setting.items()
    )


def describe_value(value: Value) -> str:
    """Return a value as a study file writes it; experts ``a_1, a_2, a_3`` as ``a_1-3``."""
    if isinstance(value, (tuple, list)):
        parts = [_NUMBERED.fullmatch(name) for name in value]
        numbers = [int(part[2]) for part in parts if part is not None]
        stems = {part[1] for part in parts if part is not None}
        if len(numbers) == len(value) > 1 == len(stems) and numbers == sorted(set(numbers)):
            return f"{stems.pop()}{format_layers(numbers)}"
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def kind_text(kind: str) -> str:
    """Return a kind of baseline in words."""
    return "TIES" if kind == "ties" else kind.replace("_", " ")


def language_name(code: str) -> str:
    """Return ``Swahili`` for ``sw``; a code that the language table lacks stays as it is."""
    return str(read_languages().get(code, {"name": code})["name"])


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task in words.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, and ``pocket_translate_en_sw`` is ``translate,
    English to Swahili``. The name of any other task keeps its words, with languages by their names.
    """
    known = read_languages()
    prefix = next((start for start in ("pocket_", "smol_", PREFIX) if task.startswith(start)), "")
    words = re.split(r"_|-(?=[a-z]{2}$)", task.removeprefix(prefix))
    first = next((at for at, word in enumerate(words) if at and word in known), len(words))
    after = next((at for at in range(first, len(words)) if words[at] not in known), len(words))
    head = " ".join(words[:first])
    if prefix == PREFIX and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(language_name(word) for word in words[first:after])
    rest = re.sub(r"\b(\d+)shot\b", r"\1-shot", " ".join(words[after:]))
    return ", ".join(filter(None, (head, languages, rest)))


def task_language(task: str) -> str:
    """Return the last two-letter part of a task's name, which is its language; else empty."""
    codes = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    return codes[-1] if codes else ""


def _recipes(plan: RunFile) -> Iterator[Model]:
    study = plan.study
    settings = study.settings() if study.recipe is not None else ()
    scaled = [_scaled(study, setting, plan.num_layers) for setting in settings]
    # A label shows what varies but the seed, and b and u together.
    names = {name for setting in scaled for name in setting} - {_SEED}
    varied = {n for n in names if len({setting_key(s.get(n, "absent")) for s in scaled}) > 1}
    varied |= _ENDS if varied & _ENDS else set()
    for given, setting in zip(settings, scaled, strict=True):
        shown = {name: value for name, value in setting.items() if name in varied}
        plain = {name: value for name, value in setting.items() if name != _SEED}
        labels = tuple(c.label for c in plan.cells if c.kind == "recipe" and c.values == given)
        pools = _names(study.pools(given), ("task", "language", "base"))
        yield Model(merge_text(study, shown), "recipe", plain, pools, labels, (given,))


def merge_text(study: Study, shown: Setting) -> str:
    """Return the merge method of a study in words, and what is shown of a setting."""
    method = str((study.recipe or {}).get("merge_method", "recipe")).replace("_", " ")
    return f"{method} {describe_setting(shown)}".strip()


def _baselines(plan: RunFile) -> Iterator[Model]:
    """Yield each baseline of the experts of every setting, once."""
    study = plan.study
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = [_names(study.pools(setting), roles) for setting in study.settings()]
        if study.recipe is None:  # the experts are what is compared, by the names of their runs
            choices = [{**choices[0], **part} for part in _families(choices[0])]
        unique = [pools for at, pools in enumerate(choices) if pools not in choices[:at]]
        telling = [role for role in roles if len({pools.get(role) for pools in unique}) > 1]
        for pools in unique:
            names = "+".join(describe_value(pools[role]) for role in telling if role in pools)
            labels = tuple(
                cell.label
                for cell in plan.cells
                if cell.kind == kind
                and all(cell.experts.get(role) in names for role, names in pools.items())
            )
            label = f"{kind_text(kind)} {names}".strip()
            if len(plan.cells) == len(roles) == 1:  # `layerswap evaluate`
                label = pools[roles[0]][0]
            yield Model(label, kind, {}, pools, labels)


def _families(pools: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Return the pools of the one role of an expert by their names without the number."""
    roles, families = [role for role in pools if role != "base"], dict[str, tuple[str, ...]]()
    if len(roles) != 1:
        return [{}]
    for name in pools[roles[0]]:
        numbered = _NUMBERED.fullmatch(name)
        family = name if numbered is None else numbered[1]
        families[family] = (*families.get(family, ()), name)
    return [{roles[0]: names} for names in families.values()]


def _names(pools: Pools, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {role: names for role in roles if (names := tuple(pools.names(role)))}


def _scaled(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return a setting with the layer counts of the model at hand, and both of b and u."""
    counts, named = merge_counts(study, setting, num_layers), set(setting)
    if len(named & _ENDS) == 1 and setting.get("placement") != "delta_share":
        named |= _ENDS
    return {**setting, **{name: counts[name] for name in counts if name in named}}
