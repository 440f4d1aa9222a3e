"""The cells of a study: recipe × setting × pair of experts, and baselines.

Every cell is a complete mergekit recipe with folders in it, and a request.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

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
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.methods.read import read_own_recipe
from layerswap_method.plan import LayerPlan

_Plan = Annotated[
    LayerPlan,
    BeforeValidator(
        lambda value: LayerPlan(tuple(value)) if isinstance(value, list | tuple) else value
    ),
    PlainSerializer(lambda plan: plan.sources),
]


class Cell(Frozen):
    """One point of a study: a model, merged or not, and the tasks it is evaluated on."""

    label: str
    """Name in words, unique in the study."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: dict[str, Value]
    """What is varied, as the study gives it (before scaling to the model's depth)."""

    experts: dict[str, str]
    """Role (``task``, ``language``, ``base``) -> name; the roles that the weights come from."""

    language: str | None = None
    """Code of the language expert's language, where the study names one."""

    merge: dict[str, Any] = Field(default_factory=dict)
    """The mergekit recipe of the weights, ``passthrough`` for an unmerged model. Folders are
    absolute, and as seen from the run folder in `run.json`."""

    plan: _Plan | None = None
    """Source of every layer, embedding side first; None where no layer is swapped, or where it is
    measured at the merge."""

    request: EvaluationRequest | None = Field(default=None, exclude=True)
    """How the tasks are evaluated; None in a cell that was read back."""

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
        return {
            **{name: _text(value) for name, value in self.values.items()},
            **self.experts,
            **({} if self.language is None else {"language_code": self.language}),
            "kind": self.kind,
            "label": self.label,
        }


def expand(
    study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> tuple[list[Cell], list[str]]:
    """Return the cells of a study, baselines first, and each problem with the cells it is about.

    `experts` are by their names in the study. Without `num_layers`, the decoder layers of the
    model, no layer counts are checked or scaled.
    """
    cells, problems = list[Cell](), dict[str, list[str]]()
    points = [*_baselines(study), *_recipes(study)]
    for label, count in Counter(cell.label for cell in points).items():
        if count > 1:
            problems.setdefault("is planned twice; name it once", []).append(label)
    for cell in points:
        roles = {role: experts[name] for role, name in cell.experts.items()}
        try:
            cells.append(_with_merge(cell, study, {**experts, **roles}, num_layers))
        except (InputError, ValueError) as error:
            problems.setdefault(str(error), []).append(cell.label)
    return cells, [
        f"{problem} (cell {label}{f' and {len(more)} more' if more else ''})"
        for problem, (label, *more) in problems.items()
    ]


def _baselines(study: Study) -> Iterator[Cell]:
    """Yield the cells of every baseline: of the experts of all settings, each once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        every = [
            names for setting in study.settings() for names in _pairs(study.pools(setting), roles)
        ]
        experts = [names for at, names in enumerate(every) if names not in every[:at]]
        telling = [role for role in roles if role != "base"]
        if not telling or len({names.get("base") for names in experts}) > 1:
            telling.append("base")
        for names in experts:
            suffix = "+".join(names[role] for role in telling if role in names)
            label = f"{kind} {suffix}" if len(experts) > 1 else kind
            yield Cell(label=label, kind=kind, values={}, experts=names)


def _recipes(study: Study) -> Iterator[Cell]:
    """Yield the cells of the recipe: every setting with every pair of its experts."""
    for setting in study.settings() if study.recipe is not None else ():
        pairs = _pairs(study.pools(setting), ("task", "language", "base"))
        for names in pairs:
            parts = [f"{name}={_text(value)}" for name, value in setting.items()]
            if len(pairs) > 1:
                parts.insert(0, "+".join(name for role, name in names.items() if role != "base"))
            label = " ".join(parts) or "recipe"
            yield Cell(label=label, kind="recipe", values=setting, experts=names)


def _pairs(pools: Pools, roles: Sequence[str]) -> list[dict[str, str]]:
    """Return role -> name of the expert, for every choice of one expert per role."""
    own = [role for role in roles if pools.names(role)]
    choices = itertools.product(*map(pools.names, own))
    return [dict(zip(own, names, strict=True)) for names in choices]


def _text(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _with_merge(
    cell: Cell, study: Study, experts: Mapping[str, Expert], num_layers: int | None
) -> Cell:
    """Return a cell with its language, recipe and layer plan; `experts` also has its roles."""
    codes, name = study.experts.languages(), cell.experts.get("language")
    if codes and name is not None and name not in codes:
        raise InputError(
            f"vary: experts.language names {name!r}{nearest(name, codes)}, whose language is not "
            "known; add it to experts.language below its language code"
        )
    if cell.kind == "recipe":
        document = with_values(study.recipe or {}, cell.values)
        document = with_scaled_counts(document, study.reference_layers, num_layers)
    else:
        document = baseline_document(cell.kind, study.recipe)
    merge, plan = with_experts(document, experts), None
    recipe = read_own_recipe(merge)
    if isinstance(recipe, DeltaRevertRecipe) and num_layers is not None:
        recipe.parameters.layers(num_layers)
    elif isinstance(recipe, LayerSwapRecipe) and num_layers is not None:
        if recipe.parameters.placement != "delta_share":
            plan = recipe.parameters.plan(num_layers)
    elif recipe is None and cell.kind == "recipe":
        check_form(merge)
    language = codes.get(name) if name is not None else None
    return cell.model_copy(update={"language": language, "merge": merge, "plan": plan})


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells that fit every condition; all of them where there is none.

    Conditions are NAME=VALUE, in any case. Values of one name are alternatives, and every name must
    fit: ``kind=recipe``, ``bottom_layers=0`` and ``bottom_layers=3`` are the recipe with either
    count.

    Raises:
        InputError: for a condition that no cell fits, or conditions that none fits together.
    """
    facts = [[f"{name}={value}" for name, value in cell.facts().items()] for cell in cells]
    known = {text.lower(): text for fact in facts for text in fact}
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, _, value = (part.strip() for part in condition.lower().partition("="))
        if (text := f"{name}={value}") not in known:
            shown = list(known.values())
            hint = nearest(text, shown) or f"; they have {', '.join(shown[:12])}"
            raise InputError(f"--only {condition}: no cell has this NAME=VALUE{hint}")
        wanted.setdefault(name, set()).add(text)
    chosen = [
        cell
        for cell, fact in zip(cells, facts, strict=True)
        if all(texts & set(map(str.lower, fact)) for texts in wanted.values())
    ]
    if cells and not chosen:
        raise InputError(
            f"--only {' --only '.join(only)}: some cells fit each condition, but none fits all"
        )
    return chosen
