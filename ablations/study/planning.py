"""From a study file to cells with keys: every check, in one pass. Runs nothing.

All problems are collected; only what cannot be asked because of an earlier one stays unasked
(layer counts without a model, tasks without a folder).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import layerswap_method
from ablations.engines.backends import backend_versions, check_devices, resolve_backend
from ablations.engines.chat import check_protocol
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.machine.progress import Step, tell
from ablations.models.find import Expert, find_expert
from ablations.models.fit import compatibility_report, unfit_vocabularies
from ablations.sandbox import Isolation
from ablations.scoring.protocol import protocol_of
from ablations.scoring.records import Backend, EvaluationRequest
from ablations.study.cells import Cell, Expansion, expand, with_isolation
from ablations.study.chat_notes import chat_notes, template_folders, tokenizer_problems
from ablations.study.checks import (
    expert_names,
    other_names_problems,
    pooled_names,
    study_problems,
    task_folder,
    with_benchmarks,
    with_experts_file,
)
from ablations.study.documents import PLACEHOLDERS
from ablations.study.experts import ExpertsFile, is_reference, read_experts_file
from ablations.study.files import StudyFile, own_folder
from ablations.study.identity import Fingerprints, identified, protocol_key, read_contents
from ablations.study.merge_notes import mostly_swapped, rounded, unstreamed
from ablations.study.scaling import describe_scaling
from ablations.study.schema import Study
from ablations.study.selection import selected
from ablations.study.single_tasks import check_data_of, with_single_tasks
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.errors import InputError, nearest
from layerswap_method.mergekit_plugin.recipe_errors import recipe_keys
from layerswap_method.recipe.references import is_folder, named_models, resolve_from

_MODELS = "write task, language or base for an expert of the cell, or name it in the experts file"


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

    num_weights: int
    """Numbers in the tensors of one model."""

    backend: Backend
    """What will evaluate."""

    versions: Mapping[str, str]
    """Of what can change a score."""

    protocol: str
    """`protocol_key` of all cells."""

    states: Mapping[str, str]
    """Folder of an expert or adapter -> `folder_state` when its content was read."""

    notes: tuple[str, ...]
    """What must be said aloud."""

    @property
    def base(self) -> Expert:
        """The shared parent, on which an engine starts."""
        return self.experts[expert_names(self.study)[0]]

    @property
    def options(self) -> EngineOptions:
        """How the engine runs."""
        return self.study.evaluate.options

    def groups(self) -> list[list[Cell]]:
        """Return the cells that are evaluated together: those of equal weights."""
        return grouped(self.cells)


def grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return identified cells by their weights, in the order of the first of each."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.weights_key, []).append(cell)
    return list(groups.values())


def plan_study(
    file: StudyFile,
    experts_file: Path | ExpertsFile | None,
    *,
    backend: BackendChoice = "auto",
    cache: Path | None = None,
    dry: bool = False,
    here: bool = False,
    only: Sequence[str] = (),
    isolation: Isolation | None = None,
    is_finished: Callable[[str], bool] | None = None,
) -> StudyPlan:
    """Return the plan of a study, after every check that can be made without running it.

    Args:
        file: the study, as far as it could be read.
        experts_file: names to folders, or the file with them; None takes the study's own
            `experts_file`.
        backend: what is to evaluate.
        cache: file in which fingerprints of experts are kept.
        dry: whether to download no expert, read no weights or data and write nothing.
        here: whether this machine will run the engine, so that it must have the GPUs.
        isolation: what holds generated programs; None skips the tasks that run them.
        only: which cells are to be run, checked here; the plan has all of them.
        is_finished: says of a record's key whether the record is there. The data that the others
            need is read once, so that what is missing is said now; None reads no data.

    Raises:
        InputError: listing every problem.
        LayerSwapError: for data on a hub that cannot be asked.
    """
    if file.study is None:
        raise InputError.from_problems(str(file.path), list(file.problems))
    problems: list[str] = []
    study, named, folder = _with_experts(file, file.study, experts_file, problems)
    with _collected(problems):
        study = with_benchmarks(_with_stated_dtype(study))
    places = (own_folder(file.path), folder)
    problems += study_problems(study, recipe_keys(), places)
    chosen, skipped = _backend(
        backend, study, problems, may_run=isolation is not None, is_complete=named is not None
    )
    if here and chosen is not None:
        with _collected(problems):
            check_devices(chosen, study.evaluate.options)
    # After the checks that need no expert: where one of them finds something, none is downloaded.
    experts = _find_experts(study, named, places, problems, download=not dry)
    expansion, checkpoints = Expansion(), list[Checkpoint]()
    if set(experts) == set(expert_names(study)):
        if study.recipe or set(study.baseline) - {"base"}:
            checkpoints, unfit = compatibility_report(list(experts.values()), aligned=True)
            problems += [f"incompatible experts: {problem}" for problem in unfit]
        else:  # one model alone need fit no other
            for adapter in filter(None, (expert.adapter for expert in experts.values())):
                with _collected(problems):
                    read_adapter_config(adapter)
                    read_adapter_tensors(adapter)
        if not problems and checkpoints and checkpoints[0].num_layers is None:
            problems.append(f"the config of {checkpoints[0].name} does not say how many layers")
        if not problems:
            tell(Step("planning the cells"))
            expansion = expand(
                study,
                experts,
                num_layers=_depth(checkpoints),
                include_path=task_folder(study),
            )
            problems += expansion.problem_list()
            problems += tokenizer_problems(expansion, experts)
            if checkpoints:
                merges = [cell.merge for cell in expansion.cells]
                unfit = unfit_vocabularies(merges, list(experts.values()), checkpoints)
                problems += [f"incompatible experts: {problem}" for problem in unfit]
            with _collected(problems):
                check_protocol(protocol_of(study.evaluate), template_folders(expansion, experts))
            if not expansion.problems:
                with _collected(problems):
                    selected(expansion.cells, only)
    if problems or chosen is None:
        raise InputError.from_problems(str(file.path), problems)
    cells = [with_isolation(cell, isolation) for cell in expansion.cells]
    expansion.cells = list(with_single_tasks(cells))
    is_auto = study.evaluate.options.dtype == "auto"
    study = _with_dtype(study, experts[expert_names(study)[0]])
    versions = {
        "mergekit": importlib.metadata.version("mergekit"),
        **backend_versions(chosen),
    }

    def identify(fingerprints: Fingerprints) -> list[Cell]:
        contents = read_contents(experts.values(), fingerprints)
        tell(Step("computing the keys of the records"))
        return identified(
            expansion.cells,
            {expert.reference: expert for expert in experts.values()},
            contents,
            backend=chosen,
            options=study.evaluate.options,
            versions=versions,
        )

    if is_finished is not None:
        # By the fingerprints that are known: large experts are read after what may be missing.
        known = identify(Fingerprints(cache, dry=True))
        check_data_of(selected(known, only), is_finished)
    tell(Step("reading the experts"))
    fingerprints = Fingerprints(cache, dry=dry)
    cells = identify(fingerprints)
    fingerprints.save()
    sized = list(checkpoints)
    with contextlib.suppress(InputError):  # of one model alone its engine says what is wrong
        base = experts[expert_names(study)[0]]
        sized = sized or [read_checkpoint(base.name, base.folder)]
    return StudyPlan(
        study=study,
        cells=tuple(cells),
        experts=experts,
        num_layers=_depth(sized),
        num_weights=sum(math.prod(shape) for c in sized[:1] for shape in c.shapes.values()),
        backend=chosen,
        versions={"layerswap": layerswap_method.__version__, **versions},
        protocol=protocol_key(cells[0].request, chosen, study.evaluate.options),
        states=fingerprints.states(),
        notes=(
            *_scaling(study, expansion, checkpoints),
            *(
                f"the same weights, evaluated once: {'; '.join(cell.label for cell in group)}"
                for group in grouped(cells)
                if len(group) > 1
            ),
            *mostly_swapped(cells),
            *chat_notes(study, experts),
            *unstreamed(cells),
            *(rounded(experts, study.evaluate.options.dtype) if is_auto else ()),
            *(f"{task}: skipped: {reason}" for task, reason in skipped.items()),
        ),
    )


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Add what is raised to `problems`, and go on."""
    try:
        yield
    except InputError as error:
        problems.append(error.message)


def _with_experts(
    file: StudyFile, study: Study, path: Path | ExpertsFile | None, problems: list[str]
) -> tuple[Study, ExpertsFile | None, Path | None]:
    """Return the study, what its experts file says, and the folder of that file.

    A study whose experts are all paths or hub ids needs no experts file.
    """
    if isinstance(path, ExpertsFile):
        return with_experts_file(study, path, file.settings), path, None
    asked = path is not None
    if path is None and study.experts_file is not None:
        path = file.path.parent / study.experts_file
    if path is None:
        names = [name for name in expert_names(study) if not is_reference(name)]
        if names:
            places = [
                f"./{name}" for name in names if is_folder(resolve_from(name, file.path.parent))
            ]
            models = set(named_models(study.recipe or {})).intersection(names)
            meant = (nearest(name, PLACEHOLDERS) for name in sorted(models - set(PLACEHOLDERS)))
            hints = filter(None, [f"; did you mean {places[0]!r}?" if places else "", *meant])
            problems.append(
                f"the study does not say where {', '.join(names)} "
                f"{'is' if len(names) == 1 else 'are'}: add --experts FILE, or write a folder "
                f"(./math), a hub id or base+adapter for each expert{next(hints, '')}"
            )
            return study, None, None
        return study, ExpertsFile.model_construct(experts={}), None
    with _collected(problems):
        found = read_experts_file(path)
        problems += other_names_problems(study, found) if asked else ()
        return with_experts_file(study, found, file.settings), found, own_folder(path)
    return study, None, None


def _find_experts(
    study: Study,
    file: ExpertsFile | None,
    places: tuple[Path | None, Path | None],
    problems: list[str],
    *,
    download: bool,
) -> dict[str, Expert]:
    """Return the experts by name; `places` are the folders of the study and of the experts file."""
    experts: dict[str, Expert] = {}
    names = expert_names(study) if file is not None else ()
    known = {} if file is None else file.references()
    models = set(named_models(study.recipe or {})) - set(pooled_names(study))
    for name in names:
        is_own = name not in known and is_reference(name)
        try:
            experts[name] = find_expert(
                name,
                {name: name} if is_own else known,
                download=download and not problems,
                folder=places[0] if is_own else places[1],
            )
        except InputError as error:
            hint = f" (a model of the recipe: {_MODELS})" if name in models else ""
            problems.append(f"{error.message}{hint}")
    return experts


def _with_stated_dtype(study: Study) -> Study:
    """Return the study with the dtype that it is evaluated in as its recipe's, if that has none."""
    recipe, dtype = study.recipe, study.evaluate.options.dtype
    if not recipe or dtype == "auto" or recipe.keys() & {"dtype", "out_dtype"}:
        return study
    return study.model_copy(update={"recipe": {**recipe, "dtype": dtype}})


def _with_dtype(study: Study, base: Expert) -> Study:
    """Return the study with the dtype of all of its models: ``auto`` is that of the base."""
    options = study.evaluate.options
    known = get_args(EngineOptions.model_fields["dtype"].annotation)
    stored = read_checkpoint(base.name, base.folder).dtype
    if options.dtype != "auto" or stored not in known:
        return study
    changes = {"options": options.model_copy(update={"dtype": stored})}
    return study.model_copy(update={"evaluate": study.evaluate.model_copy(update=changes)})


def _backend(
    choice: BackendChoice, study: Study, problems: list[str], *, may_run: bool, is_complete: bool
) -> tuple[Backend | None, dict[str, str]]:
    """Return the backend and the tasks that are skipped, with the reason.

    Args:
        choice: what the user asks for.
        study: with its tasks.
        problems: takes what is found.
        may_run: whether generated programs may run.
        is_complete: whether the experts file was read, which may name the folder of the tasks.
    """
    try:
        chosen = resolve_backend(choice)
    except InputError as error:
        problems.append(error.message)
        return None, {}
    folder, evaluate = task_folder(study), study.evaluate
    tasks = (*evaluate.tasks, *(task for each in evaluate.languages.values() for task in each))
    if not is_complete or not folder.is_dir() or not tasks:
        return chosen, {}
    request = EvaluationRequest(
        tasks=tasks,
        include_path=folder,
        allow_code_execution=may_run,
    )
    try:
        choice_of_tasks = check_tasks(request)
    except InputError as error:
        problems.append(error.message)
        return chosen, {}
    if not choice_of_tasks.asked:
        reasons = dict.fromkeys(choice_of_tasks.skipped.values())
        problems.append(f"every task of the study is skipped: {', '.join(reasons)}")
    return chosen, choice_of_tasks.skipped


def _depth(checkpoints: list[Checkpoint]) -> int:
    return next((each.num_layers or 0 for each in checkpoints), 0)


def _scaling(study: Study, expansion: Expansion, checkpoints: list[Checkpoint]) -> list[str]:
    if study.reference_layers is None or not expansion.scaled:
        return []
    return [describe_scaling(expansion.scaled, study.reference_layers, _depth(checkpoints))]
