"""Which cells of a study are one model, and what models and cells are called.

A *model* is one way to make a model from experts (the recipe in one setting, or a baseline); its
cells are the pairs of experts, and the seeds, that it was made with. A cell is named when it is
made; which models have equal weights is known when a plan is written, and stored in `run.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ablations.study.cells import Cell, ExpandedCell
from ablations.study.documents import merge_counts
from ablations.study.schema import BASELINE_ROLES, Kind, Pools, Setting, Study, Value
from ablations.study.wording import (
    NUMBERED,
    describe_value,
    kind_text,
    merge_text,
    setting_key,
)
from layerswap_method.frozen import Frozen

_SEED = "seed"

_ENDS = {"bottom_layers", "top_layers"}


class StudyModel(Frozen):
    """A model of a study."""

    label: str
    """Name in words, unique in the study."""

    kind: Kind
    """``recipe``, or the kind of baseline."""

    setting: dict[str, Value]
    """Its values of `vary`, with the layer counts of the model at hand and without the seed."""

    pools: dict[str, tuple[str, ...]]
    """Role -> names of the experts that it is made of; only the roles that it has."""

    cells: tuple[str, ...]
    """Labels of its cells."""

    given: tuple[dict[str, Value], ...] = ()
    """Its settings as the study file has them; several where seeds or `same` are joined."""

    same: tuple[dict[str, Value], ...] = ()
    """Later settings with the same weights, which are not shown by themselves."""


def derive_models(
    study: Study, cells: Sequence[Cell], num_layers: int | None
) -> tuple[StudyModel, ...]:
    """Return the models of a study, baselines first.

    Settings that differ by their seed only are one model. Settings that come to the same weights
    with every pair of experts (layer counts on a small model) are one model too: the first.
    """
    by_cell = {cell.label: cell for cell in cells}
    by_weights: dict[object, StudyModel] = {}
    for model in _labelled(study, cells, num_layers).values():
        key: object = model.label
        if model.cells and model.kind == "recipe":
            cells_of_model = [by_cell[label] for label in model.cells]
            key = frozenset(
                (setting_key(cell.experts), cell.weights_key) for cell in cells_of_model
            )
        first = by_weights.setdefault(key, model)
        if first is not model:
            by_weights[key] = first.model_copy(
                update={
                    "given": (*first.given, *model.given),
                    "same": (*first.same, model.setting),
                }
            )
    return tuple(by_weights.values())


def name_cells(
    study: Study, cells: Sequence[ExpandedCell], num_layers: int | None
) -> list[ExpandedCell]:
    """Return cells under their names: of their model, with experts where a role has several.

    A cell that is another one over again, as settings that come to the same layer counts are, is
    called by its values as the study has them.
    """
    names = _names_of_cells(cells, [*_labelled(study, cells, num_layers).values()])
    by_label = {
        cell.label: names.get(cell.label, f"{merge_text(study, {})} ({cell.label})")
        for cell in cells
    }
    return [cell.model_copy(update={"label": by_label[cell.label]}) for cell in cells]


def _labelled(
    study: Study, cells: Sequence[ExpandedCell], num_layers: int | None
) -> dict[str, StudyModel]:
    """Return label -> model, those of one label joined."""
    by_cell = {cell.label: cell for cell in cells}
    places = {label: (cell.experts, cell.values.get(_SEED)) for label, cell in by_cell.items()}
    by_label: dict[str, StudyModel] = {}
    for model in (*_baselines(study, cells), *_recipes(study, cells, num_layers)):
        earlier = by_label.get(model.label)
        if earlier is not None:
            taken = [places[label] for label in earlier.cells]
            added = [label for label in model.cells if places[label] not in taken]
            model = model.model_copy(
                update={
                    "cells": (*earlier.cells, *added),
                    "given": (*earlier.given, *model.given),
                }
            )
        by_label[model.label] = model
    return by_label


def _names_of_cells(cells: Sequence[ExpandedCell], models: Sequence[StudyModel]) -> dict[str, str]:
    """Return label of a cell -> its name."""
    by_label = {cell.label: cell for cell in cells}
    experts_of_role: dict[str, set[str]] = {"base": set(), "task": set(), "language": set()}
    for cell in cells:
        for role, expert in cell.experts.items():
            experts_of_role[role].add(expert)
    has_bases = len(experts_of_role["base"]) > 1
    is_one_pair = all(len(experts) < 2 for experts in experts_of_role.values())
    names: dict[str, str] = {}
    for model in models:
        for label in model.cells:
            cell, is_recipe = by_label[label], model.kind == "recipe"
            roles = [role for role in model.pools if role != "base" or has_bases]
            experts = "+".join(cell.experts[role] for role in roles)
            is_named = is_recipe or len(cells) == 1  # `layerswap evaluate`
            parts = [model.label if is_named else kind_text(cell.kind)]
            if experts and not is_one_pair:
                parts.insert(0 if is_recipe else 1, experts)
            if _SEED in cell.values and len(model.cells) > 1:
                parts.append(f"seed={cell.values[_SEED]}")
            names.setdefault(label, " ".join(parts))
    return names


def _recipes(
    study: Study, cells: Sequence[ExpandedCell], num_layers: int | None
) -> Iterator[StudyModel]:
    settings = study.settings() if study.recipe is not None else ()
    scaled = [_scaled(study, setting, num_layers) for setting in settings]
    # A label shows what varies but the seed, and b and u together.
    varied = set[str]()
    for name in {name for setting in scaled for name in setting} - {_SEED}:
        if len({setting_key(setting.get(name, "absent")) for setting in scaled}) > 1:
            varied.add(name)
    if varied & _ENDS:
        varied |= _ENDS
    merges = [cell for cell in cells if cell.kind == "recipe"]
    for written, setting in zip(settings, scaled, strict=True):
        shown = {name: value for name, value in setting.items() if name in varied}
        yield StudyModel(
            label=merge_text(study, shown),
            kind="recipe",
            setting={name: value for name, value in setting.items() if name != _SEED},
            pools=_names(study.pools(written), ("task", "language", "base")),
            cells=tuple(cell.label for cell in merges if cell.values == written),
            given=(dict(written),),
        )


def _baselines(study: Study, cells: Sequence[ExpandedCell]) -> Iterator[StudyModel]:
    """Yield each baseline of the experts of every setting, once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = [_names(study.pools(setting), roles) for setting in study.settings()]
        if study.recipe is None:  # the experts are what is compared, by the names of their runs
            choices = [{**choices[0], **family} for family in _families(choices[0])]
        unique = [pools for at, pools in enumerate(choices) if pools not in choices[:at]]
        varied = [role for role in roles if len({pools.get(role) for pools in unique}) > 1]
        for pools in unique:
            names = "+".join(describe_value(pools[role]) for role in varied if role in pools)
            label = f"{kind_text(kind)} {names}".strip()
            if len(cells) == len(roles) == 1:  # `layerswap evaluate`
                label = pools[roles[0]][0]
            labels = tuple(
                cell.label
                for cell in cells
                if cell.kind == kind
                and all(cell.experts.get(role) in names for role, names in pools.items())
            )
            yield StudyModel(label=label, kind=kind, setting={}, pools=pools, cells=labels)


def _families(pools: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Return the pools of the one role of an expert by their names without the number."""
    roles = [role for role in pools if role != "base"]
    if len(roles) != 1:
        return [{}]
    families: dict[str, tuple[str, ...]] = {}
    for name in pools[roles[0]]:
        numbered = NUMBERED.fullmatch(name)
        family = name if numbered is None else numbered[1]
        families[family] = (*families.get(family, ()), name)
    return [{roles[0]: names} for names in families.values()]


def _names(pools: Pools, roles: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {role: names for role in roles if (names := tuple(pools.names(role)))}


def _scaled(study: Study, setting: Setting, num_layers: int | None) -> dict[str, Value]:
    """Return a setting with the layer counts of the model at hand, and both of b and u."""
    counts = merge_counts(study, setting, num_layers)
    names = set(setting)
    if len(names & _ENDS) == 1 and setting.get("placement") != "delta_share":
        names |= _ENDS
    return {**setting, **{name: count for name, count in counts.items() if name in names}}
