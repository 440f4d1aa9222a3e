"""A run by what was merged. Knows names and weights; reads no score.

A study may give layer counts for another depth than the model's, and some settings come to the
same model. A report names the layers of the model at hand, and shows each model once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from ablations.report.design import (
    describe_setting,
    layer_counts,
    recipe_models,
    setting_key,
    told_names,
    varied_names,
)
from ablations.report.factors import factors
from ablations.runner.records import CellRecord, PlannedCell, Run, RunFile
from ablations.study.documents import with_scaled_counts, with_values
from ablations.study.scaling import scale_count
from ablations.study.schema import EXPERTS, SUGGEST, Setting, Study, Value

_Cell = TypeVar("_Cell", PlannedCell, CellRecord)


def as_merged(run: Run) -> tuple[Run, tuple[str, ...]]:
    """Return `run` named by what was merged, and a note for every model with several names.

    Layer counts are those of the model, and of settings that are one model the first stays, unless
    the others are needed for a grid. Settings with a seed stay, because they are draws.
    """
    scaled, plain, found, twins = _settings(run.head)
    found = _with_primary(found, scaled, twins)
    labels = _labels(run.head, found, scaled)

    def renamed(cells: Iterable[_Cell]) -> tuple[_Cell, ...]:
        """Return the cells that stay, by their new names."""
        names = {setting_key(each) for each in found.settings()}
        result: dict[str, _Cell] = {}
        for cell in cells:
            values = scaled.get(setting_key(cell.values), cell.values)
            if cell.kind != "recipe" or setting_key(values) in names:
                changes = {"label": labels[cell.label], "values": dict(values)}
                result.setdefault(labels[cell.label], cell.model_copy(update=changes))
        return tuple(result.values())

    head = run.head.model_copy(update={"study": found, "cells": renamed(run.head.cells)})
    failures = (
        each.model_copy(update={"label": labels.get(each.label, each.label)})
        for each in run.failures
    )
    changes = {"head": head, "cells": renamed(run.cells), "failures": tuple(failures)}
    return run.model_copy(update=changes), tuple(_notes(found, plain, twins))


def cell_names(head: RunFile) -> dict[str, str]:
    """Return label of a cell -> its name in a report; what is shown once there is named once."""
    scaled, _, found, _ = _settings(head)
    labels = _labels(head, found, scaled)
    first = {name: label for label, name in reversed(labels.items())}
    return {label: name for label, name in labels.items() if first[name] == label}


def _settings(head: RunFile) -> tuple[dict[str, dict[str, Value]], Study, Study, dict[str, str]]:
    """Return setting -> that of the model, the study with all of these, and with those that stay.

    The last is setting -> an earlier one that is the same model, of those that do not stay.
    """
    study, depth = head.study, head.num_layers
    scaled = {setting_key(each): _scaled(study, each, depth) for each in study.settings()}
    study = _with_scaled_recipe(study, depth)
    scaled = {key: _with_both_ends(study, each, scaled.values()) for key, each in scaled.items()}
    plain = _with_settings(study, _unique(scaled.values()))
    twins = _twins(head, plain, scaled)
    kept = [each for each in plain.settings() if setting_key(each) not in twins]
    found = _with_settings(study, kept)
    if len(factors(found)) < len(factors(plain)):
        twins, found = {}, plain
    return scaled, plain, found, twins


def _scaled(study: Study, setting: Setting, depth: int | None) -> dict[str, Value]:
    """Return a setting with the layer counts of the model at hand.

    A count that the recipe has joins it where the other counts of the setting changed it.
    """
    reference, found = study.reference_layers, dict(setting)
    if reference is None or depth is None or setting.get(SUGGEST):
        return found
    given = {
        name: value
        for name, value in setting.items()
        if not name.startswith(EXPERTS) and not isinstance(value, tuple)
    }
    document = with_values(study.recipe or {}, given)
    document, before = with_scaled_counts(document, reference, depth)
    for name, count in before.items():
        scaled = document["parameters"][name]
        alone = scale_count(count, reference, depth) if isinstance(count, int) else scaled
        if name in setting or scaled != alone:
            found[name] = scaled
    return found


def _with_scaled_recipe(study: Study, depth: int | None) -> Study:
    """Return the study with the layer counts of its recipe as those of the model."""
    reference, recipe = study.reference_layers, study.recipe
    if reference is None or depth is None or recipe is None:
        return study
    with contextlib.suppress(ValueError):  # it names layers of one depth, which stay
        recipe, _ = with_scaled_counts(dict(recipe), reference, depth)
    return study.model_copy(update={"recipe": recipe})


def _with_both_ends(
    study: Study, setting: dict[str, Value], settings: Collection[Setting]
) -> dict[str, Value]:
    """Return a setting with b and u where the study varies one and the recipe has the other."""
    both = ("bottom_layers", "top_layers")
    given = {name for name in both if any(name in each for each in settings)}
    counts = layer_counts(study, setting)
    varied = given & set(varied_names([*settings]))
    if len(given) != 1 or not varied <= setting.keys() or not varied or not counts:
        return setting
    return {**setting, **{name: counts[name] for name in both}}


def _with_primary(study: Study, scaled: Mapping[str, Setting], twins: Mapping[str, str]) -> Study:
    """Return the study with the setting of `report.primary` as it is named now."""
    primary = study.report.primary
    if primary.setting is None:
        return study
    key = setting_key(scaled.get(setting_key(primary.setting), primary.setting))
    setting = json.loads(twins.get(key, key))
    report = study.report.model_copy(
        update={"primary": primary.model_copy(update={"setting": setting})}
    )
    return study.model_copy(update={"report": report})


def _unique(settings: Iterable[Setting]) -> list[Setting]:
    return list({setting_key(each): each for each in settings}.values())


def _with_settings(study: Study, settings: Iterable[Setting]) -> Study:
    if study.vary is None:
        return study
    vary = tuple(dict(each) for each in settings)
    return study.model_copy(update={"vary": vary, "reference_layers": None})


def _twins(head: RunFile, study: Study, scaled: Mapping[str, Setting]) -> dict[str, str]:
    """Return setting -> an earlier one that is the same model with every pair of experts."""
    models: dict[str, set[tuple[str, str]]] = {}
    for cell in head.cells:
        if cell.kind == "recipe":
            key = setting_key(scaled[setting_key(cell.values)])
            models.setdefault(key, set()).add((json.dumps(cell.experts), cell.weights_key))
    first: dict[frozenset[tuple[str, str]], str] = {}
    twins = {}
    for setting in study.settings():
        if "seed" in setting or any(name.startswith(EXPERTS) for name in setting):
            continue
        key = setting_key(setting)
        known = first.setdefault(frozenset(models.get(key, {(key, "")})), key)
        if known != key:
            twins[key] = known
    return twins


def _labels(head: RunFile, study: Study, scaled: Mapping[str, Setting]) -> dict[str, str]:
    """Return label of a cell -> its new one, with its experts where a setting has several."""
    short = {model.setting: model.label for model in recipe_models(study)}
    pairs = {(cell.experts.get("task"), cell.experts.get("language")) for cell in head.cells}
    several = len({pair for pair in pairs if None not in pair}) > 1
    labels = {}
    for cell in head.cells:
        label = cell.label
        if cell.kind == "recipe":
            label = short.get(setting_key(scaled[setting_key(cell.values)]), label)
            if several:
                label = f"{cell.experts['task']}+{cell.experts['language']} {label}"
        elif label.startswith(cell.kind):
            kind = "TIES" if cell.kind == "ties" else cell.kind.replace("_", " ")
            label = kind + label.removeprefix(cell.kind)
        labels[cell.label] = label
    return labels


def _notes(found: Study, plain: Study, twins: Mapping[str, str]) -> Iterable[str]:
    told = told_names(plain.settings())
    names = {setting_key(each): describe_setting(each, told) for each in plain.settings()}
    for kept in dict.fromkeys(twins.values()):
        others = [names[key] for key, first in twins.items() if first == kept]
        yield f"The same model, shown once: {names[kept]}; {'; '.join(others)}."
