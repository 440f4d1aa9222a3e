"""The cells of a study: recipe × setting × pair of experts, and baselines. Knows no file content.

Every cell is a complete mergekit recipe with folders in it, and a request. What is wrong with one
is collected, not raised, so that a study's faults come in one piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.models.find import Expert
from ablations.scoring.records import EvaluationRequest
from ablations.study.documents import (
    DELTA_REVERT,
    LAYER_SWAP,
    baseline_document,
    check_revert,
    read_document,
    with_experts,
    with_scaled_counts,
    with_values,
)
from ablations.study.schema import Evaluate, Kind, Scalar, Study
from layerswap_method.algorithm.plan import LayerPlan
from layerswap_method.errors import InputError
from layerswap_method.layer_swap.recipe import Recipe
from layerswap_method.mergekit_plugin.recipe_errors import check_form


@dataclass(frozen=True)
class Cell:
    """One point of a study: what is merged and what it is asked."""

    study: str
    """Name of the study."""

    label: str
    """In words, unique in the study."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: Mapping[str, Scalar]
    """The varied parameters as the study gives them."""

    experts: Mapping[str, str]
    """Role -> name; only the roles that this cell's weights come from."""

    language: str | None
    """Code of the language expert's language, where the study names one."""

    merge: Mapping[str, Any]
    """The mergekit recipe with absolute folders; `passthrough` for an unmerged model."""

    recipe: Recipe | None
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

    def facts(self) -> dict[str, Scalar]:
        """Return what ``--only`` can ask of the cell."""
        return {
            **self.values,
            **self.experts,
            **({} if self.language is None else {"language_code": self.language}),
            "kind": self.kind,
            "label": self.label,
        }


@dataclass
class Expansion:
    """The cells of a study and everything said on the way."""

    cells: list[Cell] = field(default_factory=list)
    """In the order of the tables: baselines first."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    """Problem -> labels of the cells that have it."""

    scaled: dict[str, dict[int, None]] = field(default_factory=dict)
    """Parameter -> layer counts, as given, that were scaled to the model's depth."""

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
    known: Mapping[str, Any],
) -> Expansion:
    """Return the cells of `study`.

    Args:
        study: a study whose names are all known.
        experts: every expert by its name in the study.
        num_layers: decoder layers of the model.
        include_path: folder of the task files.
        known: `mergekit_api.recipe_fields()`.
    """
    expansion = Expansion()
    for kind in study.baseline:
        _add_baseline(expansion, study, kind, experts, include_path, num_layers, known)
    if study.recipe is not None:
        for setting, (task, language) in itertools.product(study.settings(), _pairs(study)):
            label = _label(setting, task, language, study)
            try:
                document, plan, recipe = _merge(
                    expansion, study, setting, experts, (task, language), num_layers, known
                )
            except (InputError, ValueError) as error:
                text = error.message if isinstance(error, InputError) else str(error)
                expansion.problems.setdefault(text, []).append(label)
                continue
            chosen = {"task": task, "language": language, "base": study.experts.base}
            code = study.experts.languages().get(language)
            request = _request(study.evaluate, code, include_path)
            expansion.cells.append(
                Cell(
                    study=study.name,
                    label=label,
                    kind="recipe",
                    values=setting,
                    experts=chosen,
                    language=code,
                    merge=document,
                    recipe=recipe,
                    plan=plan,
                    request=request,
                )
            )
    return expansion


def _add_baseline(
    expansion: Expansion,
    study: Study,
    kind: Any,
    experts: Mapping[str, Expert],
    include_path: Path,
    num_layers: int,
    known: Mapping[str, Any],
) -> None:
    base = study.experts.base
    choices: list[dict[str, str]]
    if kind == "base":
        choices = [{"base": base}]
    elif kind == "task_expert":
        choices = [{"task": name} for name in study.experts.task]
    elif kind == "language_expert":
        choices = [{"language": name} for name in study.experts.language_names()]
    else:
        origin = {"base": base} if kind in ("weighted_soup", "ties") else {}
        choices = [{"task": task, "language": other, **origin} for task, other in _pairs(study)]
    codes = study.experts.languages()
    for names in choices:
        code = codes.get(names.get("language", ""))
        suffix = "+".join(names[role] for role in ("task", "language") if role in names)
        found = {role: experts[name] for role, name in names.items()}
        label = f"{kind} {suffix}".strip() if len(choices) > 1 else kind
        document, recipe = baseline_document(kind, found, study.recipe), None
        if document["merge_method"] == LAYER_SWAP:
            try:
                recipe = read_document(document, known)
            except InputError as error:
                expansion.problems.setdefault(error.message, []).append(label)
                continue
        expansion.cells.append(
            Cell(
                study=study.name,
                label=label,
                kind=kind,
                values={},
                experts=names,
                language=code,
                merge=document,
                recipe=recipe,
                plan=None if recipe is None else recipe.spec.plan(num_layers),
                request=_request(study.evaluate, code, include_path),
            )
        )


def _merge(
    expansion: Expansion,
    study: Study,
    setting: Mapping[str, Scalar],
    experts: Mapping[str, Expert],
    pair: tuple[str, str],
    num_layers: int,
    known: Mapping[str, Any],
) -> tuple[dict[str, Any], LayerPlan | None, Recipe | None]:
    document = with_values(study.recipe or {}, setting)
    check_form(document)
    is_layer_swap = document.get("merge_method") == LAYER_SWAP
    if is_layer_swap and study.reference_layers is not None:
        reference = study.reference_layers
        document, counts = with_scaled_counts(document, reference, num_layers)
        if reference != num_layers:
            for name, count in counts.items():
                expansion.scaled.setdefault(name, {})[count] = None
    roles = {"task": pair[0], "language": pair[1], "base": study.experts.base}
    found = {**experts, **{role: experts[name] for role, name in roles.items()}}
    document = with_experts(document, found)
    if document.get("merge_method") == DELTA_REVERT:
        check_revert(document, known, num_layers)
    if not is_layer_swap:
        return document, None, None
    recipe = read_document(document, known)
    is_measured = recipe.spec.placement == "delta_share"
    return document, None if is_measured else recipe.spec.plan(num_layers), recipe


def _pairs(study: Study) -> Iterator[tuple[str, str]]:
    return itertools.product(study.experts.task, study.experts.language_names())


def _label(setting: Mapping[str, Scalar], task: str, language: str, study: Study) -> str:
    parts = [f"{name}={value}" for name, value in setting.items()]
    if len(list(_pairs(study))) > 1:
        parts.insert(0, f"{task}+{language}")
    return " ".join(parts) or "recipe"


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
        allow_code_execution=evaluate.allow_code_execution,
        limit=evaluate.limit,
        seed=evaluate.seed,
        level=evaluate.level,
    )
