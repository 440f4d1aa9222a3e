"""From a study file to cells with keys: every check, in one pass. Runs nothing.

All problems are collected. Checks that an earlier problem makes impossible are left out (layer
counts without a model, tasks without a folder).
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
from ablations.engines.task_loading import Choice, check_data, check_tasks
from ablations.machine.progress import Step, tell
from ablations.models.find import Expert, find_expert
from ablations.models.fit import compatibility_report, unfit_vocabularies
from ablations.sandbox import Isolation
from ablations.scoring.protocol import protocol_of
from ablations.scoring.records import Backend, EvaluationRequest
from ablations.study import notes
from ablations.study.cells import Cell, Expansion, expand, selected, task_folder
from ablations.study.checks import expert_names, study_problems, with_benchmarks
from ablations.study.documents import describe_scaling
from ablations.study.experts import ExpertsFile, read_experts_file, with_experts_file
from ablations.study.files import StudyFile, own_folder
from ablations.study.identity import Fingerprints, identified, protocol_key, read_contents
from ablations.study.schema import ROLES, Study
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.checkpoint.lora import read_adapter_config, read_adapter_tensors
from layerswap_method.errors import InputError
from layerswap_method.recipe.references import named_models


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
    versions: Mapping[str, str]
    """Of what can change a score."""

    protocol: str
    """`protocol_key` of all cells."""

    states: Mapping[str, str]
    """Folder of an expert or adapter -> `folder_state` when its content was read."""

    notes: tuple[str, ...]
    """What a reader of the scores should know."""

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
        return _grouped(self.cells)


def _grouped(cells: Iterable[Cell]) -> list[list[Cell]]:
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
        cache: file of the experts' fingerprints.
        dry: whether to download no expert, read no weights or data and write nothing.
        here: whether this machine will run the engine, so that it must have the GPUs.
        isolation: what holds generated programs; None skips the tasks that run them.
        only: which cells are to be run, checked here; the plan has all of them.
        is_finished: says of a record's key whether the record is there. The data that the others
            need is read once, so that what is missing is said now; None reads no data.

    Raises:
        InputError: listing every problem.
        LayerSwapError: for data on a hub that cannot be reached.
    """
    problems: list[str] = []
    study, named, folder = _with_experts(file, experts_file, problems)
    with _collected(problems):
        study = with_benchmarks(_with_stated_dtype(study))
    places = (own_folder(file.path), folder)
    problems += study_problems(study, places)
    by_name = {name: Expert(name, Path(name)) for name in expert_names(study)}
    problems += expand(study, by_name, num_layers=None).problem_list()
    chosen: Backend | None = None
    with _collected(problems):
        chosen = resolve_backend(backend)
        if here:
            check_devices(chosen, study.evaluate.options)
    tasks = Choice((), {}, False)
    if named is not None:  # the experts file may name the folder of the tasks
        with _collected(problems):
            tasks = _check_tasks(study, isolation)
    # Where one of the checks before finds something, no expert is downloaded.
    experts = _find_experts(study, named, places, problems, download=not dry)
    expansion, checkpoints = Expansion(), list[Checkpoint]()
    if set(experts) == set(by_name):
        checkpoints = _check_experts(study, experts, problems)
    if set(experts) == set(by_name) and not problems:
        tell(Step("planning the cells"))
        expansion = expand(study, experts, _depth(checkpoints), isolation)
        cells = expansion.cells
        problems += expansion.problem_list()
        problems += notes.tokenizer_problems(cells, experts)
        if checkpoints:
            merges = [cell.merge for cell in cells]
            unfit = unfit_vocabularies(merges, experts.values(), checkpoints)
            problems += [f"incompatible experts: {problem}" for problem in unfit]
        with _collected(problems):
            folders = notes.template_folders(cells, experts)
            check_protocol(protocol_of(study.evaluate), folders)
        if not expansion.problems:
            with _collected(problems):
                selected(cells, only)
    if problems or chosen is None:
        raise InputError.from_problems(str(file.path), problems)
    cells = _with_single_tasks(expansion.cells)
    base = experts[expert_names(study)[0]]
    is_auto = study.evaluate.options.dtype == "auto"
    study = _with_dtype(study, base)
    versions = {"mergekit": importlib.metadata.version("mergekit"), **backend_versions(chosen)}

    tell(Step("reading the experts"))
    fingerprints = Fingerprints(cache, dry=dry)
    cells = identified(
        cells,
        {expert.reference: expert for expert in experts.values()},
        read_contents(experts.values(), fingerprints),
        backend=chosen,
        options=study.evaluate.options,
        versions=versions,
    )
    fingerprints.save()
    assert cells[0].request is not None
    protocol = protocol_key(cells[0].request, chosen, study.evaluate.options)
    if is_finished is not None:
        missing = {
            task: request
            for cell in selected(cells, only)
            for task, request in cell.requests.items()
            if not is_finished(cell.records[task])
        }
        check_data(missing.values())
    if not checkpoints:
        with contextlib.suppress(InputError):  # of one model alone its engine says what is wrong
            checkpoints = [read_checkpoint(base.name, base.folder)]
    num_layers, shapes = _depth(checkpoints) or 0, checkpoints[0].shapes if checkpoints else {}
    reference, scaled = study.reference_layers, expansion.scaled
    dtype = study.evaluate.options.dtype
    return StudyPlan(
        study=study,
        cells=tuple(cells),
        experts=experts,
        num_layers=num_layers,
        num_weights=sum(math.prod(shape) for shape in shapes.values()),
        backend=chosen,
        versions={"layerswap": layerswap_method.__version__, **versions},
        protocol=protocol,
        states=fingerprints.states(),
        notes=(
            *([describe_scaling(scaled, reference, num_layers)] if reference and scaled else ()),
            *notes.equal_weights(_grouped(cells)),
            *notes.chat_notes(study, experts),
            *(notes.rounded(experts, dtype) if is_auto else ()),
            *(f"{task}: skipped: {reason}" for task, reason in tasks.skipped.items()),
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
    file: StudyFile, path: Path | ExpertsFile | None, problems: list[str]
) -> tuple[Study, ExpertsFile | None, Path | None]:
    """Return the study, what its experts file says, and the folder of that file.

    A study whose experts are all paths or hub ids needs no experts file.
    """
    study = file.study
    if isinstance(path, ExpertsFile):
        return with_experts_file(study, path, file.settings), path, None
    if path is None and study.experts_file is not None:
        path = file.path.parent / study.experts_file
    if path is None:
        if names := [name for name in expert_names(study) if not _is_reference(name)]:
            problems.append(
                f"the study does not say where {', '.join(names)} "
                f"{'is' if len(names) == 1 else 'are'}: add --experts FILE, or write a folder "
                "(./math), a hub id or base+adapter for each expert"
            )
            return study, None, None
        return study, ExpertsFile.model_construct(experts={}), None
    with _collected(problems):
        named = read_experts_file(path)
        return with_experts_file(study, named, file.settings), named, own_folder(path)
    return study, None, None


def _is_reference(name: str) -> bool:
    """Return whether a study's name of an expert says by itself where the expert is.

    Paths and hub ids have a slash (``./math``, ``org/math``); names of an experts file need none.
    """
    return "/" in name


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
    known = {} if file is None else file.references()
    for name in expert_names(study) if file is not None else ():
        is_own = name not in known and _is_reference(name)
        try:
            experts[name] = find_expert(
                name,
                {name: name} if is_own else known,
                download=download and not problems,
                folder=places[0] if is_own else places[1],
            )
        except InputError as error:
            hint = ""
            if name in named_models(study.recipe or {}):
                hint = f" (a model of the recipe, which also knows {', '.join(ROLES)})"
            problems.append(f"{error.message}{hint}")
    return experts


def _check_experts(
    study: Study, experts: Mapping[str, Expert], problems: list[str]
) -> list[Checkpoint]:
    """Return the experts' headers; none for models that are not merged, which need not fit."""
    if not study.recipe and not set(study.baseline) - {"base"}:
        for adapter in filter(None, (expert.adapter for expert in experts.values())):
            with _collected(problems):
                read_adapter_config(adapter)
                read_adapter_tensors(adapter)
        return []
    checkpoints, unfit = compatibility_report(list(experts.values()), aligned=True)
    problems += [f"incompatible experts: {problem}" for problem in unfit]
    if not unfit and checkpoints[0].num_layers is None:
        problems.append(f"the config of {checkpoints[0].name} does not say how many layers")
    return checkpoints


def _depth(checkpoints: Sequence[Checkpoint]) -> int | None:
    return checkpoints[0].num_layers if checkpoints else None


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


def _check_tasks(study: Study, isolation: Isolation | None) -> Choice:
    """Return which tasks of the study are asked and which skipped.

    Raises:
        InputError: for unknown tasks, or where all are skipped.
    """
    evaluate, folder = study.evaluate, task_folder(study.evaluate)
    tasks = (*evaluate.tasks, *(task for each in evaluate.languages.values() for task in each))
    if not tasks or not folder.is_dir():  # said already
        return Choice((), {}, False)
    allowed = isolation is not None
    choice = check_tasks(
        EvaluationRequest(tasks=tasks, include_path=folder, allow_code_execution=allowed)
    )
    if not choice.asked:
        reasons = ", ".join(dict.fromkeys(choice.skipped.values()))
        raise InputError(f"every task of the study is skipped: {reasons}")
    return choice


def _with_single_tasks(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells with groups and tags of their requests taken apart: a task has a record."""
    known: dict[EvaluationRequest, Choice] = {}
    found = []
    for cell in cells:
        assert cell.request is not None
        if cell.request not in known:
            known[cell.request] = check_tasks(cell.request)
        choice = known[cell.request]
        request = cell.request.model_copy(update={"tasks": choice.asked})
        found.append(cell.model_copy(update={"request": request, "skipped": choice.skipped}))
    return found
