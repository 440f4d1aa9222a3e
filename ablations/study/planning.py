"""From a study file to cells with keys: every check, in one pass. Runs nothing.

All problems of the files come in one error, then all of the models that they name.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import layerswap_method
from ablations.engines.backends import (
    backend_versions,
    check_devices,
    importing,
    precision_note,
    resolve_backend,
)
from ablations.engines.chat import check_protocol
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.machine.fingerprint import FileHashes, checkpoint_files, claimed_sha256
from ablations.machine.progress import Step, show_step
from ablations.models.find import Expert, find_model
from ablations.models.fit import check_context, compatibility_report, unfit_vocabularies
from ablations.sandbox import Isolation
from ablations.scoring.evaluation import Backend, EvaluationRequest, EvaluationSettings
from ablations.study import checks
from ablations.study.cells import Cell, expand, selected
from ablations.study.documents import describe_scaling
from ablations.study.downloads import fetch, needed
from ablations.study.files import (
    ExpertsFile,
    StudyFile,
    own_folder,
    read_experts_file,
    with_experts_file,
)
from ablations.study.identity import Fingerprints, identified, protocol_key, read_contents
from ablations.study.schema import ROLES, Study
from layerswap_method.checkpoint.checkpoint import Checkpoint, read_checkpoint
from layerswap_method.errors import InputError, nearest
from layerswap_method.hub.models import HubModels, Need, download_choice
from layerswap_method.recipe.references import named_models

_WORTH_IMPORTS = 1_000_000_000
"""Bytes of experts that take longer to read than a thread needs to begin."""


@dataclass(frozen=True)
class StudyPlan:
    """A study that passed every check and can be run."""

    study: Study
    """The study, with what the experts file sets."""

    cells: tuple[Cell, ...]
    """Cells with their keys, in the order of the tables."""

    experts: Mapping[str, Expert]
    """Experts by name, the base first."""

    num_layers: int
    """Decoder layers of the model."""

    num_weights: int
    """Numbers in the tensors of one model."""

    backend: Backend
    versions: Mapping[str, str]
    """Package -> version, of what can change a score."""

    protocol: str
    """`protocol_key` of all cells."""

    states: Mapping[str, str]
    """Folder of an expert or adapter -> `folder_state` when its content was read."""

    notes: tuple[str, ...]
    """What a reader of the scores should know."""

    needs: tuple[Need, ...] = ()
    """What a run would fetch of models of the hub; () where they are here."""

    def missing(
        self, only: Sequence[str], finished: Collection[str]
    ) -> dict[str, EvaluationRequest]:
        """Return task -> a request of it, where a cell that `only` leaves has no `finished` key."""
        return {
            task: request
            for cell in selected(self.cells, only)
            for task, request in cell.requests.items()
            if cell.records[task] not in finished
        }

    @property
    def base(self) -> Expert:
        """The shared parent, on which an engine starts."""
        return next(iter(self.experts.values()))

    @property
    def options(self) -> EngineOptions:
        """How the engine runs."""
        return self.study.evaluate.options


def plan_study(
    file: StudyFile,
    experts_file: Path | ExpertsFile | None,
    *,
    backend: BackendChoice = "auto",
    cache: Path | None = None,
    hashes: Path | None = None,
    dry: bool = False,
    is_engine_local: bool = False,
    jobs: int = 1,
    only: Sequence[str] = (),
    isolation: Isolation | None = None,
    download: str | None = None,
) -> StudyPlan:
    """Return the plan of a study, after every check that can be made without running it.

    Args:
        file: the study, as far as it could be read.
        experts_file: names to folders, or the file with them; None takes the study's own
            `experts_file`.
        backend: what is to evaluate.
        cache: file of the experts' fingerprints.
        hashes: file of the hashes of single files, which runs share.
        dry: whether to fetch no more than headers of experts, read no weights or data and write
            nothing.
        is_engine_local: whether this machine will run the engine, so that it must have the GPUs.
        jobs: engines that this machine will run at a time. One is this process's, which may as well
            import the libraries while it reads the experts.
        only: which cells are to be run, checked here; the plan has all of them.
        isolation: what holds generated programs; None skips the tasks that run them.
        download: a `hub.models.Download`; None takes the one of the environment.

    Raises:
        InputError: listing every problem.
    """
    where, problems = str(file.path), list[str]()
    study, places, folder = _with_experts(file, experts_file)
    with _collected(problems):
        study = checks.with_benchmarks(study)
    folders = (own_folder(file.path), folder)
    problems += checks.study_problems(study, folders)
    placeholders = {name: Expert(name, Path(name)) for name in checks.expert_names(study)}
    problems += expand(study, placeholders, num_layers=None)[1]
    with _collected(problems):
        chosen = resolve_backend(backend)
        if is_engine_local:
            check_devices(chosen, study.evaluate.options, jobs)
    with _collected(problems):
        requests = _requests(study, isolation)
        tasks = {task for fields in requests.values() for task in fields["request"].tasks}
        skipped = {n: why for fields in requests.values() for n, why in fields["skipped"].items()}
        for name in sorted({*study.report.primary.tasks} - tasks) if tasks else ():
            why = f": {skipped[name]}" if name in skipped else nearest(name, tasks)
            problems.append(f"report.primary.tasks: {name!r} is not evaluated{why}")
    hub = HubModels(download_choice(download), headers_only=dry)
    experts = _find_experts(study, places, folders, problems, hub, download=not dry)
    InputError.raise_any(where, problems)

    checkpoints = hub.retried(lambda: _check_experts(study, experts, problems))
    InputError.raise_any(where, problems)
    base = next(iter(experts.values()))
    study = _with_dtype(study, base)
    show_step(Step("planning the cells"))
    cells, problems = expand(study, experts, checkpoints[0].num_layers if checkpoints else None)
    problems += checks.lacking_tokenizers(cells, experts)
    if checkpoints:
        recipes = [cell.recipe for cell in cells]
        unfit = unfit_vocabularies(recipes, experts.values(), checkpoints)
        problems += [f"incompatible experts: {problem}" for problem in unfit]
    with _collected(problems):
        check_protocol(study.evaluate, checks.template_folders(cells, experts))
    for folder in dict.fromkeys(expert.folder for expert in experts.values()):
        # What transformers cannot read, the engine says.
        with _collected(problems), contextlib.suppress(OSError, ValueError):
            check_context(str(folder), study.evaluate.options.max_model_len)
    InputError.raise_any(where, problems)
    needs: tuple[Need, ...] = ()
    if hub.has_partial:
        read = selected(cells, only)
        if dry:
            reads = hub.retried(lambda: needed(read, experts.values(), base))
            needs = tuple(hub.needs(reads.ranges, reads.whole))
        else:
            fetch(hub, read, experts.values(), base)
    selected(cells, only)

    cells = [cell.model_copy(update=requests[cell.language]) for cell in cells]
    versions = {"mergekit": importlib.metadata.version("mergekit"), **backend_versions(chosen)}
    show_step(Step("reading the experts"))
    fingerprints = Fingerprints(cache, hashes=FileHashes(hashes), dry=dry)
    folders_read = {folder: None for expert in experts.values() for folder in expert.folders}
    files, nbytes = fingerprints.unread(folders_read)
    with ExitStack() as stack:
        if is_engine_local and jobs == 1 and nbytes >= _WORTH_IMPORTS:
            stack.enter_context(importing(chosen, study.evaluate.options))
        fingerprints.read(files)
    contents = read_contents(experts.values(), fingerprints)
    fingerprints.save()
    protocol = protocol_key(requests[None]["request"], chosen, study.evaluate.options)
    cells = identified(cells, experts.values(), contents, protocol, versions)
    if not checkpoints:
        with contextlib.suppress(InputError):  # of one model alone its engine says what is wrong
            checkpoints = [read_checkpoint(base.name, base.folder)]
    claimed = [
        name
        for name, expert in experts.items()
        if any(claimed_sha256(file) for at in expert.folders for file in checkpoint_files(at))
    ]
    num_layers, num_weights = 0, 0
    if checkpoints:
        num_layers = checkpoints[0].num_layers or 0
        num_weights = sum(map(math.prod, checkpoints[0].shapes.values()))
    notes = (
        describe_scaling(study, num_layers),
        precision_note(chosen, study.evaluate.options),
        *checks.plan_notes(study, experts, cells),
        *(f"{task}: skipped: {why}" for task, why in requests[None]["skipped"].items()),
    )
    if claimed:
        which = ", ".join(claimed)
        what = "their content is what the hub's names of the files say, and was not read"
        notes += (f"from the hub's cache: {which}: {what}",)
    if places and not places.keys() & experts.keys():
        notes += (f"the experts file names none of the study's experts: {', '.join(experts)}",)
    return StudyPlan(
        study=study,
        cells=tuple(cells),
        experts=experts,
        num_layers=num_layers,
        num_weights=num_weights,
        backend=chosen,
        versions={"layerswap": layerswap_method.__version__, **versions},
        protocol=protocol,
        states=fingerprints.states(),
        notes=tuple(filter(None, notes)),
        needs=needs,
    )


@contextlib.contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Add what is raised to `problems`, and go on."""
    try:
        yield
    except InputError as error:
        problems.append(error.message)


def _with_experts(
    file: StudyFile, given: Path | ExpertsFile | None
) -> tuple[Study, Mapping[str, str], Path | None]:
    """Return the study, the places of its experts file by name, and the folder of that file."""
    if given is None and file.study.experts_file is not None:
        given = file.path.parent / file.study.experts_file
    if given is None:
        return file.study, {}, None
    folder = None if isinstance(given, ExpertsFile) else own_folder(given)
    named = given if isinstance(given, ExpertsFile) else read_experts_file(given)
    places = {name: entry.path for name, entry in named.experts.items()}
    return with_experts_file(file.study, named, file.settings), places, folder


def _find_experts(
    study: Study,
    places: Mapping[str, str],
    folders: tuple[Path | None, Path | None],
    problems: list[str],
    hub: HubModels,
    *,
    download: bool,
) -> dict[str, Expert]:
    """Return the experts by name; `folders` are those of the study and of the experts file.

    Where something is wrong already, no expert is downloaded.
    """
    experts: dict[str, Expert] = {}
    for name in checks.expert_names(study):
        try:
            # Paths and hub ids have a slash (./math, org/math) and need no experts file.
            if name not in places and "/" not in name:
                known = f"{nearest(name, places)}; it names {', '.join(sorted(places))}"
                where = f"no expert {name!r} in the experts file{known}"
                raise InputError(
                    where
                    if places
                    else f"the study does not say where {name} is: add --experts FILE, or write a "
                    "folder (./math), a hub id or base+adapter for each expert"
                )
            experts[name] = find_model(
                places.get(name, name),
                name=name,
                download=download and not problems,
                folder=folders[name in places],
                hub=None if problems else hub,
            )
        except InputError as error:
            is_of_recipe = name in named_models(study.recipe or {})
            roles = f" (a model of the recipe, which also knows {', '.join(ROLES)})"
            problems.append(f"{error.message}{roles if is_of_recipe else ''}")
    return experts


def _check_experts(
    study: Study, experts: Mapping[str, Expert], problems: list[str]
) -> list[Checkpoint]:
    """Return the experts' headers; none for models that are not merged, which need not fit."""
    if not study.recipe and not set(study.baseline) - {"base"}:
        return []
    checkpoints, unfit = compatibility_report(list(experts.values()), aligned=True)
    problems += [f"incompatible experts: {problem}" for problem in unfit]
    if not unfit and checkpoints[0].num_layers is None:
        problems.append(f"the config of {checkpoints[0].name} does not say how many layers")
    return checkpoints


def _with_dtype(study: Study, base: Expert) -> Study:
    """Return the study with the dtype of all of its models: ``auto`` is that of the base.

    One that is stated is its recipe's, too, if that has none.
    """
    evaluate, recipe = study.evaluate, study.recipe
    if evaluate.options.dtype != "auto":
        if not recipe or recipe.keys() & {"dtype", "out_dtype"}:
            return study
        return study.model_copy(update={"recipe": {**recipe, "dtype": evaluate.options.dtype}})
    stored = read_checkpoint(base.name, base.folder).dtype
    if stored not in get_args(EngineOptions.model_fields["dtype"].annotation):
        return study
    options = {"options": evaluate.options.model_copy(update={"dtype": stored})}
    return study.model_copy(update={"evaluate": evaluate.model_copy(update=options)})


def _requests(study: Study, isolation: Isolation | None) -> dict[str | None, dict[str, Any]]:
    """Return language -> fields of its cells: request, groups and tags taken apart, and skipped.

    Raises:
        InputError: for unknown tasks, or where all are skipped.
    """
    evaluate = study.with_folders(Path.absolute).evaluate  # workers may work elsewhere
    fields = dict[str | None, dict[str, Any]]()
    settings = {name: getattr(evaluate, name) for name in EvaluationSettings.model_fields}
    for language in (None, *study.experts.languages().values()):
        # A model without a language gets the tasks of all.
        lists = [tasks for code, tasks in evaluate.languages.items() if language in (None, code)]
        settings["tasks"] = tuple(dict.fromkeys(itertools.chain(evaluate.tasks, *lists)))
        if not settings["tasks"] or not evaluate.task_folder.is_dir():  # a problem of the study
            continue
        request = EvaluationRequest(**settings, isolation=isolation)
        choice = check_tasks(request)
        if language is None and not choice.chosen:
            reasons = ", ".join(dict.fromkeys(choice.skipped.values()))
            raise InputError(f"every task of the study is skipped: {reasons}")
        request = request.model_copy(update={"tasks": choice.chosen})
        fields[language] = {"request": request, "skipped": choice.skipped}
    return fields
