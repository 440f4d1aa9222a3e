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
from typing import Protocol

from ablations.study.documents import DELTA_REVERT, LAYER_SWAP, with_scaled_counts, with_values
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Kind, Pools, Setting, Study, Value
from ablations.tasks.catalog import PREFIX, TITLES
from ablations.tasks.languages import Language, load_languages
from layerswap_method.methods.layer_swap import LayerSwapSpec
from layerswap_method.plan import format_layers

LETTERS = {
    "bottom_layers": "b",
    "top_layers": "u",
    "bottom_transition": "t_b",
    "top_transition": "t_u",
}
"""The paper's letters for layer counts."""

_NUMBERED = re.compile(r"(.*?_)(0|[1-9][0-9]*)")
_SEED = "seed"
_TESTBEDS = ("pocket_", "smol_")


class PlannedCell(Protocol):
    """What is read of a cell."""

    @property
    def label(self) -> str:
        """In words, unique in its study."""

    @property
    def kind(self) -> Kind:
        """The recipe, or a baseline."""

    @property
    def values(self) -> Mapping[str, Value]:
        """What is varied, as the study gives it."""

    @property
    def experts(self) -> Mapping[str, str]:
        """Role -> name of the expert."""

    @property
    def weights_key(self) -> str:
        """Hash of the weights."""


class Planned(Protocol):
    """What is read of a plan, such as a run's ``run.json``."""

    @property
    def study(self) -> Study:
        """The study, with the settings as its file gives them."""

    @property
    def cells(self) -> Sequence[PlannedCell]:
        """All planned cells."""

    @property
    def num_layers(self) -> int | None:
        """Decoder layers of the model; None leaves layer counts as they are."""


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


def models_of(plan: Planned) -> tuple[Model, ...]:
    """Return the models of a study, baselines first.

    Settings that differ by their seed only are one model. Settings that come to the same weights
    with every pair of experts (layer counts on a small model) are one model too: the first.
    """
    planned = {cell.label: cell for cell in plan.cells}

    def place(label: str) -> str:
        cell = planned[label]
        return json.dumps([cell.experts, cell.values.get(_SEED)], sort_keys=True)

    found: dict[str, Model] = {}
    every = tuple(planned.values())
    recipes = _recipes(plan.study, every, plan.num_layers)
    for model in (*_baselines(plan.study, every), *recipes):
        known = found.setdefault(model.label, model)
        places = {place(label) for label in known.cells}
        more = tuple(label for label in model.cells if place(label) not in places)
        if known is not model:
            given = (*known.given, *model.given)
            found[model.label] = replace(known, cells=(*known.cells, *more), given=given)
    return tuple(_unique(found.values(), planned))


def cell_names(plan: Planned) -> dict[str, str]:
    """Return label of a cell -> its name in a report: its experts, where there are several pairs.

    Cells that a report leaves out have no name.
    """
    planned = {cell.label: cell for cell in plan.cells}
    pairs = {(c.experts.get("task"), c.experts.get("language")) for c in planned.values()}
    is_one = len({pair for pair in pairs if None not in pair}) < 2
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
    shared = {
        name: settings[0][name]
        for name in LETTERS
        if name in names and len({json.dumps(counts.get(name)) for counts in settings}) == 1
    }
    of = "" if num_layers is None else f" of {num_layers}"
    is_revert = (study.recipe or {}).get("merge_method") == DELTA_REVERT
    to = "set back to the base" if is_revert else "from the language expert"
    note = f"b, u: layers{of} {to} at the bottom (embedding side) and the top"
    if any(counts.get(name) for counts in settings for name in ("bottom_transition",)):
        note += "; t_b, t_u: averaged layers next to them"
    used = {name: count for name, count in shared.items() if count}
    if used:
        which = "every merge has" if len(settings) > 1 else "the merge has"
        note += f"; {which} {describe_setting(used)}"
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
    language = _languages().get(code)
    return code if language is None else language.name


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task in words.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, and ``pocket_translate_en_sw`` is ``translate,
    English to Swahili``. The name of any other task keeps its words, with languages by their names.
    """
    known = _languages()
    prefix = next((start for start in (*_TESTBEDS, PREFIX) if task.startswith(start)), "")
    words = re.split(r"_|-(?=[a-z]{2}$)", task.removeprefix(prefix))
    first = next((at for at, word in enumerate(words) if at and word in known), len(words))
    after = next((at for at in range(first, len(words)) if words[at] not in known), len(words))
    head = " ".join(words[:first])
    if task.startswith(PREFIX) and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(known[word].name for word in words[first:after])
    rest = re.sub(r"\b(\d+)shot\b", r"\1-shot", " ".join(words[after:]))
    return ", ".join(filter(None, (head, languages, rest)))


def task_language(task: str) -> str:
    """Return the last two-letter part of a task's name, which is its language; else empty."""
    codes = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    return codes[-1] if codes else ""


@functools.cache
def _languages() -> dict[str, Language]:
    return load_languages()


def _recipes(study: Study, cells: Sequence[PlannedCell], num_layers: int | None) -> Iterable[Model]:
    if study.recipe is None:
        return
    scaled = [_scaled(study, setting, num_layers) for setting in study.settings()]
    varied = _varied_names(scaled)
    method = str(study.recipe.get("merge_method", "recipe")).replace("_", " ")
    for given, setting in zip(study.settings(), scaled, strict=True):
        shown = {name: value for name, value in setting.items() if name in varied}
        plain = {name: value for name, value in setting.items() if name != _SEED}
        labels = tuple(c.label for c in cells if c.kind == "recipe" and c.values == dict(given))
        pools = _names(study.pools(given), ("task", "language", "base"))
        label = f"{method} {describe_setting(shown)}".strip()
        yield Model(label, "recipe", plain, pools, labels, (given,))


def _baselines(study: Study, cells: Sequence[PlannedCell]) -> Iterable[Model]:
    """Yield each baseline of the experts of every setting, once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = [_names(study.pools(setting), roles) for setting in study.settings()]
        if study.recipe is None:  # the experts are what is compared, by the names of their runs
            choices = [{**choices[0], **part} for part in _families(choices[0])]
        unique = list({json.dumps(pools): pools for pools in choices}.values())
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


def _varied_names(settings: Sequence[Setting]) -> set[str]:
    """Return the names that a label shows: what varies but the seed, and b and u together."""
    names = {name for setting in settings for name in setting} - {_SEED}
    values = {name: {json.dumps(s.get(name, "absent")) for s in settings} for name in names}
    varied = {name for name, known in values.items() if len(known) > 1}
    ends = {"bottom_layers", "top_layers"}
    return varied | ends if varied & ends else varied


def _scaled(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return a setting with the layer counts of the model at hand, and both of b and u."""
    counts = _counts(study, setting, num_layers)
    named = set(setting)
    ends = {"bottom_layers", "top_layers"}
    if len(named & ends) == 1 and setting.get("placement") != "delta_share":
        named |= ends
    return {**setting, **{name: counts[name] for name in counts if name in named}}


def _counts(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return the layer counts of a merge, written or not; nothing where it has none."""
    recipe = dict(study.recipe or {})
    method = recipe.get("merge_method")
    values = {
        name: value
        for name, value in setting.items()
        if not name.startswith(EXPERTS) and not isinstance(value, (tuple, list))
    }
    is_own = bool(values.pop("suggest", False))
    document = with_values(recipe, values)
    parameters = dict(document.get("parameters") or {})
    if method not in (LAYER_SWAP, DELTA_REVERT):
        return {}
    if parameters.get("placement") in ("soup", "delta_share", "layers"):
        return {}
    if method == LAYER_SWAP:
        fields = LayerSwapSpec.model_fields
        parameters = {**{name: fields[name].default for name in LETTERS}, **parameters}
    reference = study.reference_layers
    if reference is not None and num_layers is not None and not is_own:
        with contextlib.suppress(ValueError):
            document, _ = with_scaled_counts(document, reference, num_layers)
            parameters |= document.get("parameters") or {}
    names = (*LETTERS, "revert_layers")
    return {name: parameters[name] for name in names if name in parameters}


def _unique(models: Iterable[Model], cells: Mapping[str, PlannedCell]) -> Iterable[Model]:
    """Yield the models, those of the same weights with all experts once."""
    found: dict[object, Model] = {}
    for model in models:
        weights = frozenset(
            (json.dumps(cells[label].experts, sort_keys=True), cells[label].weights_key)
            for label in model.cells
        )
        is_alone = model.kind != "recipe" or not weights
        key: object = model.label if is_alone else weights
        known = found.get(key)
        if known is None:
            found[key] = model
        else:
            found[key] = replace(
                known,
                given=(*known.given, *model.given),
                same=(*known.same, model.setting),
            )
    yield from found.values()
