"""From a study file to cells with keys: every check, in one pass. Runs nothing.

All problems are collected; only what cannot be asked because of an earlier one stays unasked
(layer counts without a model, tasks without a folder).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import layerswap_method
from ablations.evaluation.backends import backend_versions, resolve_backend
from ablations.evaluation.evaluator import BackendChoice, EngineOptions
from ablations.evaluation.lm_eval_backend import check_tasks
from ablations.evaluation.scores import Backend, EvaluationRequest
from ablations.study.cells import Cell, Expansion, expand
from ablations.study.checks import expert_names, study_problems, task_folder, with_experts_file
from ablations.study.compatibility import compatibility_report
from ablations.study.experts import Expert, ExpertsFile, find_expert, read_experts_file
from ablations.study.files import StudyFile
from ablations.study.identity import Fingerprints, identified, read_contents
from ablations.study.scaling import describe_scaling
from ablations.study.schema import Study
from layerswap_method.checkpoints import Checkpoint
from layerswap_method.errors import InputError
from layerswap_method.mergekit_api import recipe_fields


@dataclass(frozen=True)
class StudyPlan:
    """A study that can be run: nothing is left to be found wrong before the first cell."""

    study: Study
    """With what the experts file sets."""

    cells: tuple[Cell, ...]
    """In the order of the tables, with their keys."""

    experts: Mapping[str, Expert]
    """By name."""

    num_layers: int
    """Decoder layers of the model."""

    checkpoint_bytes: int
    """Of one checkpoint's weights on disk."""

    backend: Backend
    """What will evaluate."""

    versions: Mapping[str, str]
    """Of what can change a score."""

    states: Mapping[str, str]
    """Folder of an expert or adapter -> `folder_state` when its content was read."""

    notes: tuple[str, ...]
    """What must be said aloud."""

    @property
    def base(self) -> Expert:
        """The shared parent, on which an engine starts."""
        return self.experts[self.study.experts.base]

    @property
    def options(self) -> EngineOptions:
        """How the engine runs."""
        return self.study.evaluate.options

    def groups(self) -> tuple[tuple[Cell, ...], ...]:
        """Return the cells that are evaluated together: same weights, same protocol."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.score_key, []).append(cell)
        return tuple(tuple(group) for group in groups.values())


def plan_study(
    file: StudyFile,
    experts_file: Path | None,
    *,
    backend: BackendChoice = "auto",
    cache: Path | None = None,
    dry: bool = False,
) -> StudyPlan:
    """Return the plan of a study, after every check that can be made without running it.

    Args:
        file: the study, as far as it could be read.
        experts_file: names to folders; None takes the study's own `experts_file`.
        backend: what is to evaluate.
        cache: file in which fingerprints of experts are kept.
        dry: whether to download no expert, read no weights and write nothing.

    Raises:
        InputError: listing every problem.
    """
    problems = list(file.problems)
    if file.study is None:
        raise InputError.from_problems(str(file.path), problems)
    study, named = _with_experts(file, file.study, experts_file, problems)
    known = recipe_fields()
    problems += study_problems(study, known)
    experts = _find_experts(study, named, problems, download=not dry)
    chosen = _backend(backend, study, problems)
    expansion, checkpoints = Expansion(), list[Checkpoint]()
    if set(experts) == set(expert_names(study)):
        aligned = bool(study.recipe and (study.recipe.keys() & {"tokenizer", "tokenizer_source"}))
        checkpoints, unfit = compatibility_report(list(experts.values()), aligned=aligned)
        problems += [f"incompatible experts: {problem}" for problem in unfit]
        if not problems and checkpoints[0].num_layers is None:
            problems.append(f"the config of {checkpoints[0].name} does not say how many layers")
        if not problems:
            expansion = expand(
                study,
                experts,
                num_layers=checkpoints[0].num_layers or 0,
                include_path=task_folder(study) or Path(),
                known=known,
            )
            problems += expansion.problem_list()
    if problems or chosen is None:
        raise InputError.from_problems(str(file.path), problems)
    versions = _versions(chosen)
    fingerprints = Fingerprints(cache, dry=dry)
    contents = read_contents(experts.values(), fingerprints)
    fingerprints.save()
    cells = identified(
        expansion.cells,
        {expert.reference: expert for expert in experts.values()},
        contents,
        backend=chosen,
        options=study.evaluate.options,
        versions=versions,
    )
    return StudyPlan(
        study=study,
        cells=tuple(cells),
        experts=experts,
        num_layers=checkpoints[0].num_layers or 0,
        checkpoint_bytes=sum(f.stat().st_size for f in checkpoints[0].path.glob("*.safetensors")),
        backend=chosen,
        versions=versions,
        states=fingerprints.states(),
        notes=(*_scaling(study, expansion, checkpoints), *_shared_weights(cells)),
    )


def _with_experts(
    file: StudyFile, study: Study, path: Path | None, problems: list[str]
) -> tuple[Study, ExpertsFile | None]:
    if path is None and study.experts_file is not None:
        path = file.path.parent / study.experts_file
    if path is None:
        problems.append("no experts file: add --experts FILE (name: folder, hub id, base+adapter)")
        return study, None
    try:
        found = read_experts_file(path)
    except InputError as error:
        problems.append(error.message)
        return study, None
    return with_experts_file(study, found), found


def _find_experts(
    study: Study, file: ExpertsFile | None, problems: list[str], *, download: bool
) -> dict[str, Expert]:
    experts: dict[str, Expert] = {}
    names = expert_names(study) if file is not None else ()
    known = {} if file is None else file.experts
    for name in names:
        try:
            experts[name] = find_expert(name, known, download=download and not problems)
        except InputError as error:
            problems.append(error.message)
    return experts


def _backend(choice: BackendChoice, study: Study, problems: list[str]) -> Backend | None:
    try:
        chosen = resolve_backend(choice)
    except InputError as error:
        problems.append(error.message)
        return None
    folder = task_folder(study)
    evaluate = study.evaluate
    tasks = (*evaluate.tasks, *(task for each in evaluate.languages.values() for task in each))
    if folder is not None and folder.is_dir() and tasks:
        try:
            check_tasks(EvaluationRequest(tasks=tuple(tasks), include_path=folder))
        except InputError as error:
            problems.append(error.message)
    return chosen


def _versions(backend: Backend) -> dict[str, str]:
    ours = {"layerswap": layerswap_method.__version__}
    return {**ours, "mergekit": importlib.metadata.version("mergekit"), **backend_versions(backend)}


def _scaling(study: Study, expansion: Expansion, checkpoints: list[Checkpoint]) -> list[str]:
    if study.reference_layers is None or not expansion.scaled:
        return []
    num_layers = checkpoints[0].num_layers or 0
    return [describe_scaling(expansion.scaled, study.reference_layers, num_layers)]


def _shared_weights(cells: list[Cell]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for cell in cells:
        groups.setdefault(cell.score_key, []).append(cell.label)
    return [
        f"the same weights, evaluated once: {'; '.join(labels)}"
        for labels in groups.values()
        if len(labels) > 1
    ]
