"""The cells of a study: recipe × setting × pair of experts, and baselines.

Every cell is a complete recipe with folders in it, parsed when the cell is made, and a request.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from ablations.models.find import Expert
from ablations.scoring.evaluation import EvaluationRequest
from ablations.study.documents import (
    baseline_document,
    with_experts,
    with_scaled_counts,
    with_values,
)
from ablations.study.schema import BASELINE_ROLES, Kind, Pools, Study, Value
from layerswap_method.errors import InputError, nearest
from layerswap_method.frozen import Frozen
from layerswap_method.layer_plan import LayerPlan
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import read_recipe
from layerswap_method.methods.table import OUR_METHODS
from layerswap_method.recipe.document import Recipe

_Plan = Annotated[
    LayerPlan,
    BeforeValidator(
        lambda value: LayerPlan(tuple(value)) if isinstance(value, list | tuple) else value
    ),
    PlainSerializer(lambda plan: plan.sources),
]


def _read(value: Any) -> Recipe:
    if isinstance(value, Recipe):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("merge_method"), str):
        raise ValueError("is not a recipe; it has no merge_method")
    try:
        return read_recipe(value)
    except InputError as error:  # whoever reads the cell says where
        raise ValueError(error.message) from error


_Recipe = Annotated[
    Recipe,
    PlainValidator(_read),
    PlainSerializer(lambda recipe: recipe.document),
]


class Cell(Frozen):
    """One point of a study: a model, merged or not, and the tasks it is evaluated on."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    label: str
    """Name in words, unique in the study."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: dict[str, Value]
    """The varied values as the study gives them (before scaling to the model's depth)."""

    experts: dict[str, str]
    """Role (``task``, ``language``, ``base``) -> name; the roles that the weights come from."""

    language: str | None = None
    """Code of the language expert's language, where the study names one."""

    recipe: _Recipe = Field(alias="merge")
    """The recipe of the weights, ``passthrough`` for an unmerged model. Folders are absolute, and
    as seen from the run folder in `run.json`, which has the written form as ``merge``."""

    plan: _Plan | None = None
    """Source of every layer, embedding side first; None where no layer is swapped, or where it is
    measured at the merge."""

    request: EvaluationRequest | None = Field(default=None, exclude=True)
    """The evaluation of the tasks; None in a cell that was read back."""

    weights_key: str = ""
    """Hash of the weights, equal where two cells are one model; see `ablations.study.identity`."""

    records: dict[str, str] = Field(default_factory=dict)
    """Task -> key of its record, in the order of the request."""

    skipped: dict[str, str] = Field(default_factory=dict)
    """Task of the study that is not evaluated -> why."""

    @property
    def requests(self) -> dict[str, EvaluationRequest]:
        """Task -> the request of that task alone."""
        assert self.request is not None
        return {task: self.request.model_copy(update={"tasks": (task,)}) for task in self.records}

    def facts(self) -> dict[str, str]:
        """Return the cell's properties for ``--only``, as text."""
        facts = {name: _text(value) for name, value in self.values.items()}
        facts |= self.experts
        if self.language is not None:
            facts["language_code"] = self.language
        return {**facts, "kind": self.kind, "label": self.label}


class _Point(NamedTuple):
    """A cell before its recipe is made."""

    label: str
    kind: Kind
    values: dict[str, Value]
    experts: dict[str, str]
    """Role -> name; see `Cell`."""


def expand(
    study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> tuple[list[Cell], list[str]]:
    """Return the cells of a study, baselines first, and each problem with the cells it is about.

    `experts` are by their names in the study. Without `num_layers`, the decoder layers of the
    model, no layer counts are checked or scaled.
    """
    cells, problems = list[Cell](), dict[str, list[str]]()
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
            names for setting in study.settings() for names in _pairs(study.pools(setting), roles)
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
        pairs = _pairs(study.pools(setting), ("task", "language", "base"))
        for names in pairs:
            parts = [f"{name}={_text(value)}" for name, value in setting.items()]
            if len(pairs) > 1:
                parts.insert(0, "+".join(name for role, name in names.items() if role != "base"))
            label = " ".join(parts) or "recipe"
            yield _Point(label, "recipe", values=setting, experts=names)


def _pairs(pools: Pools, roles: Sequence[str]) -> list[dict[str, str]]:
    """Return role -> name of the expert, for every choice of one expert per role."""
    filled = [role for role in roles if pools.names(role)]
    choices = itertools.product(*map(pools.names, filled))
    return [dict(zip(filled, names, strict=True)) for names in choices]


def _text(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _cell(
    point: _Point, study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> Cell:
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
    return Cell(
        **point._asdict(),
        language=codes.get(name) if name is not None else None,
        recipe=recipe,
        plan=None if num_layers is None else _plan_of(recipe, num_layers),
    )


def _plan_of(recipe: Recipe | None, num_layers: int) -> LayerPlan | None:
    """Return the layer plan of a recipe that has one; raises for layers that the model lacks."""
    if isinstance(recipe, DeltaRevertRecipe):
        recipe.parameters.layers(num_layers)
    if isinstance(recipe, LayerSwapRecipe) and recipe.parameters.placement != "delta_share":
        return recipe.parameters.plan(num_layers)
    return None


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells that fit every condition; all of them where there is none.

    Conditions are NAME=VALUE, in any case. Values of one name are alternatives, and every name must
    fit: ``kind=recipe``, ``bottom_layers=0`` and ``bottom_layers=3`` are the recipe with either
    count.

    Raises:
        InputError: for a condition that no cell fits, or conditions that none fits together.
    """
    facts = [[f"{name}={value}" for name, value in cell.facts().items()] for cell in cells]
    texts = {text.lower(): text for fact in facts for text in fact}
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, _, value = (part.strip() for part in condition.lower().partition("="))
        if (text := f"{name}={value}") not in texts:
            shown = list(texts.values())
            hint = nearest(text, shown) or f"; they have {', '.join(shown[:12])}"
            raise InputError(f"--only {condition}: no cell has this NAME=VALUE{hint}")
        wanted.setdefault(name, set()).add(text)
    chosen = [
        cell
        for cell, fact in zip(cells, facts, strict=True)
        if all(values & set(map(str.lower, fact)) for values in wanted.values())
    ]
    if cells and not chosen:
        raise InputError(
            f"--only {' --only '.join(only)}: some cells fit each condition, but none fits all"
        )
    return chosen
