"""The cells of a study: recipe × setting × pair of experts, and baselines. Knows no file content.

Every cell is a complete mergekit recipe with folders in it, and a request. What is wrong with one
is collected, not raised, so that a study's faults come in one piece.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.models.find import Expert
from ablations.sandbox import Isolation
from ablations.scoring.protocol import protocol_of
from ablations.scoring.records import EvaluationRequest
from ablations.study.documents import (
    DELTA_REVERT,
    LAYER_SWAP,
    baseline_document,
    with_experts,
    with_scaled_counts,
    with_values,
)
from ablations.study.schema import (
    BASELINE_ROLES,
    EXPERTS,
    Evaluate,
    Kind,
    Setting,
    Study,
    Value,
)
from layerswap_method.errors import InputError
from layerswap_method.mergekit_plugin.recipe_errors import check_form
from layerswap_method.methods.delta_revert import DeltaRevertRecipe
from layerswap_method.methods.layer_swap import LayerSwapRecipe
from layerswap_method.plan import LayerPlan


@dataclass(frozen=True)
class Cell:
    """One point of a study: what is merged and what it is asked."""

    label: str
    """In words, unique in the study."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: Setting
    """What is varied, as the study gives it."""

    experts: Mapping[str, str]
    """Role -> name; only the roles that this cell's weights come from."""

    language: str | None
    """Code of the language expert's language, where the study names one."""

    merge: Mapping[str, Any]
    """The mergekit recipe with absolute folders; `passthrough` for an unmerged model."""

    recipe: LayerSwapRecipe | None
    """`merge` read by the method itself; None unless it is a `layer_swap`."""

    plan: LayerPlan | None
    """The layer plan; None where no layer is swapped, or where it is measured at the merge."""

    request: EvaluationRequest
    """What is asked."""

    weights_key: str = ""
    """See `ablations.study.identity`; empty until identified."""

    score_keys: Mapping[str, str] = field(default_factory=dict)
    """Task -> key of its record; empty until identified."""

    skipped: Mapping[str, str] = field(default_factory=dict)
    """Task that the study names and that is not asked -> why."""

    def facts(self) -> dict[str, str]:
        """Return what ``--only`` can ask of the cell, as text."""
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
    """The cells of a study and everything said on the way."""

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
    *,
    num_layers: int,
    include_path: Path,
) -> Expansion:
    """Return the cells of `study`.

    Args:
        study: a study whose names are all known.
        experts: every expert by its name in the study.
        num_layers: decoder layers of the model.
        include_path: folder of the task files.
    """
    expansion = Expansion()
    codes = study.experts.languages()
    for kind, label, setting, names in (*_baselines(study), *_recipes(study)):
        try:
            if kind == "recipe":
                document, plan, recipe = _merge(
                    expansion, study, setting, experts, names, num_layers
                )
            else:
                found = {role: experts[name] for role, name in names.items()}
                document = baseline_document(kind, found, study.recipe)
                is_ours = document["merge_method"] == LAYER_SWAP
                recipe = LayerSwapRecipe.read(document) if is_ours else None
                plan = None if recipe is None else recipe.parameters.plan(num_layers)
        except (InputError, ValueError) as error:
            text = error.message if isinstance(error, InputError) else str(error)
            expansion.problems.setdefault(text, []).append(label)
            continue
        code = codes.get(names.get("language", ""))
        expansion.cells.append(
            Cell(
                label=label,
                kind=kind,
                values=setting,
                experts=names,
                language=code,
                merge=document,
                recipe=recipe,
                plan=plan,
                request=_request(study.evaluate, code, include_path),
            )
        )
    return expansion


def _baselines(study: Study) -> Iterator[_Point]:
    """Yield the cells of every baseline: of the experts of all settings, each once."""
    for kind in study.baseline:
        roles = BASELINE_ROLES[kind]
        choices = dict.fromkeys(
            names
            for pools in map(study.pools, study.settings())
            for names in itertools.product(*(pools.names(role) for role in roles))
        )
        experts = [dict(zip(roles, names, strict=True)) for names in choices]
        telling = [role for role in roles if role != "base"] or ["base"]
        if len({each.get("base") for each in experts}) > 1 and "base" not in telling:
            telling.append("base")
        for names in experts:
            suffix = "+".join(names[role] for role in telling)
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
    names: Mapping[str, str],
    num_layers: int,
) -> tuple[dict[str, Any], LayerPlan | None, LayerSwapRecipe | None]:
    parameters: dict[str, Any] = {
        name: value for name, value in setting.items() if not name.startswith(EXPERTS)
    }
    document = with_values(study.recipe or {}, parameters)
    if document.get("merge_method") not in (LAYER_SWAP, DELTA_REVERT):  # those get experts first
        check_form(document)
    is_layer_swap = document.get("merge_method") == LAYER_SWAP
    if study.reference_layers is not None:
        reference = study.reference_layers
        document, counts = with_scaled_counts(document, reference, num_layers)
        if reference != num_layers:
            for name, count in counts.items():
                became = expansion.scaled.setdefault(name, {}).setdefault(count, {})
                became[document["parameters"][name]] = None
    found = {**experts, **{role: experts[name] for role, name in names.items()}}
    document = with_experts(document, found)
    if document.get("merge_method") == DELTA_REVERT:
        DeltaRevertRecipe.read(document).parameters.layers(num_layers)
    if not is_layer_swap:
        return document, None, None
    recipe = LayerSwapRecipe.read(document)
    is_measured = recipe.parameters.placement == "delta_share"
    return document, None if is_measured else recipe.parameters.plan(num_layers), recipe


def _text(value: Value) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _request(evaluate: Evaluate, language: str | None, include_path: Path) -> EvaluationRequest:
    """Return the request of a cell: a model without a language is asked about all of them."""
    asked = [evaluate.languages.get(language, ())] if language is not None else []
    if language is None:
        asked = list(evaluate.languages.values())
    tasks = dict.fromkeys((*evaluate.tasks, *itertools.chain.from_iterable(asked)))
    return EvaluationRequest(
        tasks=tuple(tasks),
        include_path=include_path,
        data_dir=None if evaluate.data_dir is None else Path(evaluate.data_dir).absolute(),
        limit=evaluate.limit,
        seed=evaluate.seed,
        level=evaluate.level,
        protocol=protocol_of(evaluate),
    )


def with_isolation(cell: Cell, isolation: Isolation | None) -> Cell:
    """Return a cell that may run generated programs, where the command line says so."""
    if isolation is None:
        return cell
    changes = {"allow_code_execution": True, "code_isolation": isolation}
    return dataclasses.replace(cell, request=cell.request.model_copy(update=changes))
