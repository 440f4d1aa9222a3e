"""What the models of a study are called in reports, and which cells are one model.

A *model* is one way to make a model from experts (the recipe in one setting, or a baseline); its
cells are the pairs of experts, and the seeds, that it was made with.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ablations.study.documents import COUNTS, with_scaled_counts, with_values
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Kind, Pools, Setting, Study, Value
from ablations.tasks.catalog import PREFIX, TITLES, read_languages
from layerswap_method.methods.delta_revert import NAME as DELTA_REVERT
from layerswap_method.methods.layer_swap import NAME as LAYER_SWAP
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.plan import format_layers

if TYPE_CHECKING:  # a plan as it is written down
    from ablations.runner.records import RunFile
    from ablations.study.cells import Cell

LETTERS = dict(zip(COUNTS, ("b", "u", "t_b", "t_u"), strict=True))
"""The paper's letters for layer counts."""

_NUMBERED = re.compile(r"(.*?_)(0|[1-9][0-9]*)")
_SEED = "seed"
_ENDS = {"bottom_layers", "top_layers"}


@dataclass(frozen=True)
class Model:
    """A model of a study."""

    label: str
    """In words, unique in the study."""

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

    def place(label: str) -> str:
        return _text([cells[label].experts, cells[label].values.get(_SEED)])

    by_label: dict[str, Model] = {}
    for model in (*_baselines(plan.study, plan.cells), *_recipes(plan)):
        if (known := by_label.get(model.label)) is None:
            by_label[model.label] = model
            continue
        places = {place(label) for label in known.cells}
        more = tuple(label for label in model.cells if place(label) not in places)
        given = (*known.given, *model.given)
        by_label[model.label] = replace(known, cells=(*known.cells, *more), given=given)
    found: dict[object, Model] = {}
    for model in by_label.values():
        weights = frozenset(
            (_text(cells[label].experts), cells[label].weights_key) for label in model.cells
        )
        key = weights if weights and model.kind == "recipe" else model.label
        if (known := found.get(key)) is None:
            found[key] = model
            continue
        given, same = (*known.given, *model.given), (*known.same, model.setting)
        found[key] = replace(known, given=given, same=same)
    return tuple(found.values())


def _text(value: object) -> str:
    """Return a text that is equal for equal values."""
    return json.dumps(value, sort_keys=True)


def cell_names(plan: RunFile) -> dict[str, str]:
    """Return label of a cell -> its name in a report: its experts, where a role has several.

    Cells that a report leaves out have no name.
    """
    planned = {cell.label: cell for cell in plan.cells}
    used = {(role, name) for cell in planned.values() for role, name in cell.experts.items()}
    is_one = all(sum(role == each for each, _ in used) < 2 for role in ("task", "language"))
    names: dict[str, str] = {}
    for model in models_of(plan):
        for label in model.cells:
            cell = planned[label]
            experts = "+".join(cell.experts[role] for role in model.pools if role != "base")
            parts = [model.label if model.kind == "recipe" else kind_text(cell.kind)]
            if experts and not is_one:
                parts.insert(0 if model.kind == "recipe" else 1, experts)
            if _SEED in cell.values and len(model.cells) > 1:
                parts.append(f"seed={cell.values[_SEED]}")
            names.setdefault(label, " ".join(parts))
    return names


def merge_note(study: Study, num_layers: int | None) -> str:
    """Return what the letters in labels mean, and the layer counts that all merges share."""
    settings = [_counts(study, each, num_layers) for each in study.settings()]
    names = {name for counts in settings for name in counts}
    if not names:
        return ""
    of = "" if num_layers is None else f" of {num_layers}"
    is_revert = (study.recipe or {}).get("merge_method") == DELTA_REVERT
    to = "set back to the base" if is_revert else "from the language expert"
    note = f"b, u: layers{of} {to} at the bottom (embedding side) and the top"
    if any(counts.get("bottom_transition") for counts in settings):
        note += "; t_b, t_u: averaged layers next to them"
    shared = {
        name: count
        for name in LETTERS
        if name in names and len({_text(counts.get(name)) for counts in settings}) == 1
        if (count := settings[0][name])
    }
    if shared:
        which = "every merge has" if len(settings) > 1 else "the merge has"
        note += f"; {which} {describe_setting(shared)}"
    return f"{note}."


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
    return _language_names().get(code, code)


@functools.cache
def _language_names() -> dict[str, str]:
    return {code: str(language["name"]) for code, language in read_languages().items()}


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task in words.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, and ``pocket_translate_en_sw`` is ``translate,
    English to Swahili``. The name of any other task keeps its words, with languages by their names.
    """
    known = _language_names()
    prefix = next((start for start in ("pocket_", "smol_", PREFIX) if task.startswith(start)), "")
    words = re.split(r"_|-(?=[a-z]{2}$)", task.removeprefix(prefix))
    first = next((at for at, word in enumerate(words) if at and word in known), len(words))
    after = next((at for at in range(first, len(words)) if words[at] not in known), len(words))
    head = " ".join(words[:first])
    if prefix == PREFIX and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(known[word] for word in words[first:after])
    rest = re.sub(r"\b(\d+)shot\b", r"\1-shot", " ".join(words[after:]))
    return ", ".join(filter(None, (head, languages, rest)))


def task_language(task: str) -> str:
    """Return the last two-letter part of a task's name, which is its language; else empty."""
    codes = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    return codes[-1] if codes else ""


def _recipes(plan: RunFile) -> Iterable[Model]:
    study = plan.study
    if study.recipe is None:
        return
    scaled = [_scaled(study, setting, plan.num_layers) for setting in study.settings()]
    # A label shows what varies but the seed, and b and u together.
    names = {name for setting in scaled for name in setting} - {_SEED}
    varied = {n for n in names if len({_text(s.get(n, "absent")) for s in scaled}) > 1}
    varied |= _ENDS if varied & _ENDS else set()
    method = str(study.recipe.get("merge_method", "recipe")).replace("_", " ")
    for given, setting in zip(study.settings(), scaled, strict=True):
        shown = {name: value for name, value in setting.items() if name in varied}
        plain = {name: value for name, value in setting.items() if name != _SEED}
        labels = tuple(c.label for c in plan.cells if c.kind == "recipe" and c.values == given)
        pools = _names(study.pools(given), ("task", "language", "base"))
        label = f"{method} {describe_setting(shown)}".strip()
        yield Model(label, "recipe", plain, pools, labels, (given,))


def _baselines(study: Study, cells: Sequence[Cell]) -> Iterable[Model]:
    """Yield each baseline of the experts of every setting, once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = [_names(study.pools(setting), roles) for setting in study.settings()]
        if study.recipe is None:  # the experts are what is compared, by the names of their runs
            choices = [{**choices[0], **part} for part in _families(choices[0])]
        unique = list({_text(pools): pools for pools in choices}.values())
        telling = [role for role in roles if len({pools.get(role) for pools in unique}) > 1]
        for pools in unique:
            names = "+".join(describe_value(pools[role]) for role in telling if role in pools)
            label = " ".join(filter(None, (kind_text(kind), names)))
            labels = tuple(
                cell.label
                for cell in cells
                if cell.kind == kind
                and all(cell.experts.get(role) in names for role, names in pools.items())
            )
            yield Model(label, kind, {}, pools, labels)


def _families(pools: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Return the pools of the one role of an expert by their names without the number."""
    (role, *others) = [role for role in pools if role != "base"] or [""]
    if not role or others:
        return [{}]
    families: dict[str, list[str]] = {}
    for name in pools[role]:
        numbered = _NUMBERED.fullmatch(name)
        families.setdefault(name if numbered is None else numbered[1], []).append(name)
    return [{role: tuple(names)} for names in families.values()]


def _names(pools: Pools, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {role: names for role in roles if (names := tuple(pools.names(role)))}


def _scaled(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return a setting with the layer counts of the model at hand, and both of b and u."""
    counts, named = _counts(study, setting, num_layers), set(setting)
    if len(named & _ENDS) == 1 and setting.get("placement") != "delta_share":
        named |= _ENDS
    return {**setting, **{name: counts[name] for name in counts if name in named}}


def _counts(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return the layer counts of a merge, written or not; nothing where it has none."""
    values = {
        name: value
        for name, value in setting.items()
        if not name.startswith(EXPERTS) and not isinstance(value, tuple)
    }
    document = with_values(study.recipe or {}, values)
    parameters = dict(document.get("parameters") or {})
    method = document.get("merge_method")
    if method not in (LAYER_SWAP, DELTA_REVERT):
        return {}
    if parameters.get("placement") in ("soup", "delta_share", "layers"):
        return {}
    if method == LAYER_SWAP:
        fields = LayerSwapSpec.model_fields
        parameters = {**{name: fields[name].default for name in LETTERS}, **parameters}
    if study.reference_layers is not None and num_layers is not None:
        with contextlib.suppress(ValueError):
            document, _ = with_scaled_counts(document, study.reference_layers, num_layers)
            parameters |= document.get("parameters") or {}
    return {name: parameters[name] for name in (*LETTERS, "revert_layers") if name in parameters}
