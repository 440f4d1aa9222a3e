"""The models of a run: which cells are one model, and what model and cells are called in a report.

A *model* is one way to make a model from experts (the recipe in one setting, or a baseline); its
cells are the pairs of experts, and the seeds, that it was made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ablations.study.documents import merge_counts
from ablations.study.schema import BASELINE_ROLES, Kind, Pools, Setting, Study, Value

if TYPE_CHECKING:  # a plan as it is written down
    from ablations.runs.records import RunFile
from ablations.study.wording import _NUMBERED, describe_value, kind_text, merge_text, setting_key

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
