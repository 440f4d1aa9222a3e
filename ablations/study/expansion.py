"""From a study to its cells: recipe × setting × pair of experts, and baselines."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ablations.models.find import Expert
from ablations.study.cells import ExpandedCell, value_text
from ablations.study.documents import (
    baseline_document,
    with_experts,
    with_scaled_counts,
    with_values,
)
from ablations.study.grouping import name_cells
from ablations.study.schema import BASELINE_ROLES, Kind, Pools, Study, Value
from layerswap_method.errors import InputError, nearest
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.methods.read import read_recipe
from layerswap_method.methods.table import OUR_METHODS


class _Point(NamedTuple):
    """A cell before its recipe is made."""

    label: str
    """Its values as the study has them; problems are told with it."""

    kind: Kind
    values: dict[str, Value]
    experts: dict[str, str]
    """Role -> name; see `ExpandedCell`."""


def expand(
    study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> tuple[list[ExpandedCell], list[str]]:
    """Return the cells of a study, baselines first, and each problem with the cells it is about.

    `experts` are by their names in the study, which is right in itself. Without `num_layers`, the
    decoder layers of the model, no layer counts are checked or scaled.
    """
    cells, problems = _make(study, experts, num_layers)
    return name_cells(study, cells, num_layers), problems


def cell_problems(study: Study, experts: Mapping[str, Expert]) -> list[str]:
    """Return each problem of the cells of a study, whatever else is wrong with it.

    Of the models nothing is known but their names, so no layer counts are checked.
    """
    return _make(study, experts, None)[1]


def _make(
    study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> tuple[list[ExpandedCell], list[str]]:
    cells, problems = list[ExpandedCell](), dict[str, list[str]]()
    points = [*_baselines(study), *_recipes(study)]
    for label, count in Counter(point.label for point in points).items():
        if count > 1:
            problems.setdefault("is planned twice; name it once", []).append(label)
    for point in points:
        roles = {role: experts[name] for role, name in point.experts.items()}
        try:
            cells.append(_cell(point, study, {**experts, **roles}, num_layers))
        except (InputError, ValueError) as error:
            problems.setdefault(str(error), []).append(point.label)
    return cells, [
        f"{problem} (cell {label}{f' and {len(more)} more' if more else ''})"
        for problem, (label, *more) in problems.items()
    ]


def _baselines(study: Study) -> Iterator[_Point]:
    """Yield the points of every baseline: of the experts of all settings, each once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        every = [
            names
            for setting in study.settings()
            for names in expert_choices(study.pools(setting), roles)
        ]
        experts = [names for at, names in enumerate(every) if names not in every[:at]]
        naming = [role for role in roles if role != "base"]
        if not naming or len({names.get("base") for names in experts}) > 1:
            naming.append("base")
        for names in experts:
            suffix = "+".join(names[role] for role in naming if role in names)
            label = f"{kind} {suffix}" if len(experts) > 1 else kind
            yield _Point(label, kind, values={}, experts=names)


def _recipes(study: Study) -> Iterator[_Point]:
    """Yield the points of the recipe: every setting with every pair of its experts."""
    for setting in study.settings() if study.recipe is not None else ():
        pairs = expert_choices(study.pools(setting), ("task", "language", "base"))
        for names in pairs:
            parts = [f"{name}={value_text(value)}" for name, value in setting.items()]
            if len(pairs) > 1:
                parts.insert(0, "+".join(name for role, name in names.items() if role != "base"))
            label = " ".join(parts) or "recipe"
            yield _Point(label, "recipe", values=setting, experts=names)


def expert_choices(pools: Pools, roles: Sequence[str]) -> list[dict[str, str]]:
    """Return role -> name of the expert, for every choice of one expert per role."""
    filled = [role for role in roles if pools.names(role)]
    choices = itertools.product(*map(pools.names, filled))
    return [dict(zip(filled, names, strict=True)) for names in choices]


def _cell(
    point: _Point, study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> ExpandedCell:
    """Return the cell of a point, with its recipe and plan; `experts` also has its roles."""
    codes, name = study.experts.languages(), point.experts.get("language")
    if codes and name is not None and name not in codes:
        raise InputError(
            f"vary: experts.language names {name!r}{nearest(name, codes)}, whose language is not "
            "known; add it to experts.language below its language code"
        )
    if point.kind == "recipe":
        document = with_values(study.recipe or {}, point.values)
        document = with_scaled_counts(document, study.reference_layers, num_layers)
    else:
        document = baseline_document(point.kind, study.recipe)
    document = with_experts(document, experts)
    if point.kind == "recipe" and document.get("merge_method") not in OUR_METHODS:
        check_form(document)
    recipe = read_recipe(document)
    return ExpandedCell(
        label=point.label,
        kind=point.kind,
        values=point.values,
        experts=point.experts,
        language=codes.get(name) if name is not None else None,
        recipe=recipe,
        plan=None if num_layers is None else recipe.layer_plan(num_layers),
    )
