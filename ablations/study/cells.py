"""The cells of a study: recipe × setting × pair of experts, and baselines.

Every cell is a complete mergekit recipe with folders in it, and a request. What is wrong with one
is collected, not raised, so that a study's faults come in one piece.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from ablations.models.find import Expert
from ablations.sandbox import Isolation
from ablations.scoring.protocol import protocol_of
from ablations.scoring.records import EvaluationRequest
from ablations.study.documents import (
    baseline_document,
    missing_role,
    with_experts,
    with_scaled_counts,
    with_values,
)
from ablations.study.schema import BASELINE_ROLES, EXPERTS, Evaluate, Kind, Setting, Study, Value
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError, nearest
from layerswap_method.frozen import Frozen
from layerswap_method.mergekit_plugin.recipe_errors import check_form, unknown_parameters
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
    """In words, unique in the study."""

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


_Point = tuple[Kind, str, Setting, dict[str, str]]
"""Kind and label of a cell to be, what is varied, role -> name of the expert."""


@dataclass
class Expansion:
    """The cells of a study, with what is wrong with them and what was scaled."""

    cells: list[Cell] = field(default_factory=list)
    """In the order of the tables: baselines first."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    """Problem -> labels of the cells that have it."""

    scaled: dict[str, dict[int | str, dict[int | str, None]]] = field(default_factory=dict)
    """Parameter -> layer counts and lists, as given -> what they are at the model's depth."""

    def problem_list(self) -> list[str]:
        """Return each problem once, with the cells it is about."""
        return [
            f"{problem} (cell {labels[0]}{f' and {more} more' if more else ''})"
            for problem, labels in self.problems.items()
            for more in [len(labels) - 1]
        ]


def expand(
    study: Study,
    experts: Mapping[str, Expert],
    num_layers: int | None,
    isolation: Isolation | None = None,
) -> Expansion:
    """Return the cells of `study`.

    Args:
        study: with the settings of its experts file.
        experts: every expert by its name in the study.
        num_layers: decoder layers of the model; None checks and scales no layer counts.
        isolation: what holds generated programs; None skips the tasks that run them.
    """
    expansion = Expansion()
    codes = study.experts.languages()
    points = [*_baselines(study), *_recipes(study)]
    for label, count in Counter(label for _, label, _, _ in points).items():
        if count > 1:
            expansion.problems.setdefault("is planned twice; name it once", []).append(label)
    for kind, label, setting, names in points:
        code = codes.get(names.get("language", ""))
        try:
            if codes and code is None and "language" in names:
                raise InputError(
                    f"vary: experts.language names {names['language']!r}"
                    f"{nearest(names['language'], codes)}, whose language is not known; add it to "
                    "experts.language below its language code"
                )
            chosen = {**experts, **{role: experts[name] for role, name in names.items()}}
            if kind == "recipe":
                merge = _merge(expansion, study, setting, chosen, num_layers)
            else:
                for role in BASELINE_ROLES[kind]:
                    if role not in names:
                        raise InputError(missing_role(role))
                merge = baseline_document(kind, chosen, study.recipe)
            recipe, plan = read_own_recipe(merge), None
            if isinstance(recipe, DeltaRevertRecipe) and num_layers is not None:
                recipe.parameters.layers(num_layers)
            elif isinstance(recipe, LayerSwapRecipe) and num_layers is not None:
                if recipe.parameters.placement != "delta_share":
                    plan = recipe.parameters.plan(num_layers)
            elif recipe is None and kind == "recipe":
                check_form(merge)
                InputError.raise_any("recipe", unknown_parameters(merge))
        except (InputError, ValueError) as error:
            text = error.message if isinstance(error, InputError) else str(error)
            expansion.problems.setdefault(text, []).append(label)
            continue
        if (request := _request(study.evaluate, code, isolation)) is not None:
            cell = Cell(
                label=label,
                kind=kind,
                values=dict(setting),
                experts=names,
                language=code,
                merge=merge,
                plan=plan,
                request=request,
            )
            expansion.cells.append(cell)
    return expansion


def _baselines(study: Study) -> Iterator[_Point]:
    """Yield the cells of every baseline: of the experts of all settings, each once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = dict.fromkeys(
            names
            for pools in map(study.pools, study.settings())
            for names in itertools.product(*(pools.names(role) or (None,) for role in roles))
        )
        experts = [
            {role: name for role, name in zip(roles, names, strict=True) if name is not None}
            for names in choices
        ]
        telling = [role for role in roles if role != "base"] or ["base"]
        if len({each.get("base") for each in experts}) > 1 and "base" not in telling:
            telling.append("base")
        for names in experts:
            suffix = "+".join(names[role] for role in telling if role in names)
            yield kind, f"{kind} {suffix}" if len(experts) > 1 else kind, {}, names


def _recipes(study: Study) -> Iterator[_Point]:
    """Yield the cells of the recipe: every setting with every pair of its experts."""
    for setting in study.settings() if study.recipe is not None else ():
        pools = study.pools(setting)
        roles = [role for role in ("task", "language") if pools.names(role)]
        pairs = list(itertools.product(*map(pools.names, roles)))
        for pair in pairs:
            parts = [f"{name}={_text(value)}" for name, value in setting.items()]
            if len(pairs) > 1:
                parts.insert(0, "+".join(pair))
            names = {**dict(zip(roles, pair, strict=True)), "base": pools.base}
            yield "recipe", " ".join(parts) or "recipe", setting, names


def _merge(
    expansion: Expansion,
    study: Study,
    setting: Setting,
    experts: Mapping[str, Expert],
    num_layers: int | None,
) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        name: value for name, value in setting.items() if not name.startswith(EXPERTS)
    }
    document, reference = with_values(study.recipe or {}, parameters), study.reference_layers
    if reference is not None and num_layers is not None:
        document, counts = with_scaled_counts(document, reference, num_layers)
        for name, count in counts.items() if reference != num_layers else ():
            became = expansion.scaled.setdefault(name, {}).setdefault(count, {})
            became[document["parameters"][name]] = None
    return with_experts(document, experts)


def _text(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _request(
    evaluate: Evaluate, language: str | None, isolation: Isolation | None
) -> EvaluationRequest | None:
    """Return the request of a cell: a model without a language gets the tasks of all.

    None where no task is named, which `ablations.study.checks` says.
    """
    lists = [tasks for code, tasks in evaluate.languages.items() if language in (None, code)]
    tasks = dict.fromkeys((*evaluate.tasks, *itertools.chain.from_iterable(lists)))
    if not tasks:
        return None
    held = {} if isolation is None else {"code_isolation": isolation}
    return EvaluationRequest(
        tasks=tuple(tasks),
        include_path=task_folder(evaluate),
        data_dir=None if evaluate.data_dir is None else Path(evaluate.data_dir).absolute(),
        allow_code_execution=isolation is not None,
        limit=evaluate.limit,
        seed=evaluate.seed,
        level=evaluate.level,
        protocol=protocol_of(evaluate),
        **held,
    )


def task_folder(evaluate: Evaluate) -> Path:
    """Return the folder of the task files: the shipped ones where neither file names another."""
    path = evaluate.include_path
    return SHIPPED_TASKS if path is None else Path(path).absolute()


def selected(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Return the cells that fit every condition; all of them where there is none.

    Values of one name are alternatives, and every name must fit: ``kind=recipe``,
    ``bottom_layers=0`` and ``bottom_layers=3`` are the recipe with either count.

    Args:
        cells: of a study.
        only: conditions NAME=VALUE; small and capital letters count as the same.

    Raises:
        InputError: for what is no condition, a name or value that no cell has, or conditions that
            no cell fits together.
    """
    facts = [cell.facts() for cell in cells]
    wanted: dict[str, set[str]] = {}
    for condition in only:
        name, sign, value = (part.strip() for part in condition.partition("="))
        names = dict.fromkeys(known for fact in facts for known in fact)
        values = {fact[name].lower(): fact[name] for fact in facts if name in fact}
        if not sign:
            raise InputError(f"--only {condition}: write NAME=VALUE, such as kind=recipe")
        if not values:
            raise InputError(f"--only {condition}: no cell has {name!r}{_listed(name, names)}")
        if value.lower() not in values:
            hint = _listed(value, values.values())
            raise InputError(f"--only {condition}: no cell has this value{hint}")
        wanted.setdefault(name, set()).add(value.lower())
    chosen = [
        cell
        for cell, fact in zip(cells, facts, strict=True)
        if all(fact.get(name, "").lower() in values for name, values in wanted.items())
    ]
    if cells and not chosen:
        raise InputError(
            f"--only {' --only '.join(only)}: some cells fit each condition, but none fits all"
        )
    return chosen


def _listed(name: str, known: Collection[str]) -> str:
    shown = list(known)[:12]
    more = f" or one of {len(known) - 12} more" if len(known) > 12 else ""
    return f"{nearest(name, known) or ';'} there are {', '.join(shown)}{more}"
