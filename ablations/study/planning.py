"""From a study file to cells with keys: every check, in one pass. Runs nothing.

All problems of the files come in one error, then all of the models that they name.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import layerswap_method
from ablations.engines.backends import (
    backend_versions,
    check_devices,
    precision_note,
    resolve_backend,
)
from ablations.engines.chat import check_protocol
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.machine.fingerprint import FileHashes, checkpoint_files, claimed_sha256
from ablations.machine.progress import Step, show_step
from ablations.models.find import Expert, find_model
from ablations.models.fit import check_context, compatibility_report, unfit_vocabularies
from ablations.requests.fingerprint import fingerprints_of
from ablations.requests.resolve import ResolvedTasks, resolve
from ablations.sandbox import Isolation
from ablations.scoring.evaluation import Backend, EvaluationRequest, EvaluationSettings
from ablations.scoring.observed import OBSERVED
from ablations.study import checks
from ablations.study.cells import MadeCell, PlannedCell, selected
from ablations.study.documents import describe_scaling
from ablations.study.expansion import cell_problems, expand
from ablations.study.files import (
    ExpertsFile,
    StudyFile,
    own_folder,
    read_experts_file,
    with_experts_file,
)
from ablations.study.identity import (
    Fingerprints,
    IdentifiedCells,
    identified,
    protocol_key,
    read_contents,
)
from ablations.study.names import with_names
from ablations.study.needed_files import fetch_needed_files, needed_files
from ablations.study.schema import EXPERTS, ROLES, Study
from layerswap_method.checkpoint.checkpoint import Checkpoint, name_list, read_checkpoint
from layerswap_method.errors import InputError, LayerSwapError, nearest
from layerswap_method.hub.downloads import Downloads, Need, download_choice
from layerswap_method.recipe.references import is_folder, named_models, resolve_from
from layerswap_method.tensors import Merge

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class StudyPlan:
    """A study that passed every check and can be run."""

    study: Study
    """The study, with what the experts file sets."""

    cells: tuple[PlannedCell, ...]
    """Cells with their keys, in the order of the tables."""

    task_languages: Mapping[str, str]
    """Task -> code of its language, where its metadata state one."""

    experts: Mapping[str, Expert]
    """Experts by name, the base first."""

    num_layers: int
    """Decoder layers of the model."""

    num_weights: int
    """Numbers in the tensors of one model."""

    backend: Backend
    versions: Mapping[str, str]
    """Package -> version, of what can change a score."""

    protocol_key: str
    """Hash of prompts, generation and engine, which all scores share."""

    states: Mapping[str, str]
    """Folder of an expert or adapter -> `folder_state` when its content was read."""

    notes: tuple[str, ...]
    """Notes for a reader of the scores."""

    merges: Mapping[str, Merge]
    """`weights_key` -> the merge of its cells, where it is planned tensor by tensor."""

    needs: tuple[Need, ...] = ()
    """Parts of models of the hub that a run would fetch; () where they are here."""

    @property
    def base(self) -> Expert:
        """The shared parent, whose config and tokenizer an engine has."""
        return next(iter(self.experts.values()))

    @property
    def options(self) -> EngineOptions:
        """Options of the engine."""
        return self.study.evaluate.options


def plan_study(
    file: StudyFile,
    experts_file: Path | ExpertsFile | None,
    *,
    backend: BackendChoice = "auto",
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
        hashes: file of the hashes of single files, which runs share.
        dry: whether to fetch no more than headers of experts, read no weights or data and write
            nothing.
        is_engine_local: whether this machine will run the engine, so that it must have the GPUs.
        jobs: engines that this machine will run at a time.
        only: which cells are to be run, checked here; the plan has all of them.
        isolation: what holds generated programs; None skips the tasks that run them.
        download: a `hub.downloads.Download`; None takes the one of the environment.

    Raises:
        InputError: listing every problem.
    """
    checked = _check_files(
        file,
        experts_file,
        backend=backend,
        engines=jobs if is_engine_local else 0,
        isolation=isolation,
        download=download,
        dry=dry,
    )
    study, cells, checkpoints = _make_cells(str(file.path), checked)
    read = selected(cells, only)
    needs = _fetch(checked, read, dry=dry)
    show_step(Step("reading the experts"))
    fingerprints = Fingerprints(FileHashes(hashes), dry=dry)
    experts = checked.experts.values()
    fingerprints.read(dict.fromkeys(folder for expert in experts for folder in expert.folders))
    contents = read_contents(experts, fingerprints)
    request = checked.resolved[None].request
    protocol = protocol_key(request, checked.backend, study.evaluate.options)
    mergekit = {"mergekit": importlib.metadata.version("mergekit")}
    versions = {**mergekit, **backend_versions(checked.backend)}
    done = identified(cells, checked.resolved, experts, contents, protocol, versions)
    shape = _shape(checkpoints, checked.base)
    return StudyPlan(
        study=study,
        cells=done.cells,
        task_languages=done.task_languages,
        experts=checked.experts,
        num_layers=shape.num_layers,
        num_weights=shape.num_weights,
        backend=checked.backend,
        versions={"layerswap": layerswap_method.__version__, **versions},
        protocol_key=protocol,
        states=fingerprints.states(),
        notes=tuple(filter(None, _notes(study, checked, done, shape.num_layers))),
        merges=done.merges,
        needs=needs,
    )


def with_its_files(file: StudyFile) -> Study:
    """Return a study with what its experts file sets, and the tasks that languages stand for.

    Raises:
        InputError: where its experts file or a name of a task is wrong.
    """
    whole = _with_all_files(file, None)
    problems = whole.problems or checks.task_problems(whole.study)
    InputError.raise_any(str(file.path), problems)
    return whole.study


class _Checked(NamedTuple):
    """A study whose files are right, and what was learned while they were checked."""

    study: Study
    of_file: Mapping[str, str]
    """Names of the experts file -> where that has the experts, also those of no cell."""

    experts: Mapping[str, Expert]
    resolved: Mapping[str | None, ResolvedTasks]
    """See `tasks_by_language`."""

    backend: Backend
    hub: Downloads

    @property
    def base(self) -> Expert:
        """The shared parent."""
        return next(iter(self.experts.values()))


def _check_files(
    file: StudyFile,
    experts_file: Path | ExpertsFile | None,
    *,
    backend: BackendChoice,
    engines: int,
    isolation: Isolation | None,
    download: str | None,
    dry: bool,
) -> _Checked:
    """Return the study with its experts and requests; see `plan_study`.

    This machine must have the GPUs for `engines` at a time.

    Raises:
        InputError: with every problem of the files, and every expert that is not found.
    """
    whole = _with_all_files(file, experts_file)
    study, problems = whole.study, [*whole.problems]
    beside = whole.experts_file and own_folder(whole.experts_file)
    folders = (own_folder(file.path), beside)
    problems += checks.study_problems(study, folders, has_all_tasks=not whole.problems)
    placeholders = {name: Expert(name, Path(name)) for name in checks.expert_names(study)}
    problems += cell_problems(study, placeholders)
    chosen = _tried(problems, resolve_backend, backend)
    if chosen is not None and engines:
        _tried(problems, check_devices, chosen, study.evaluate.options, engines)
    resolved = _tried(problems, tasks_by_language, study, isolation)
    if resolved is not None:
        problems += _primary_problems(study, resolved.values())
        problems += _item_problems(study, resolved.values())
        _tried(problems, _check_metric, study, resolved.values())
    hub = Downloads(download_choice(download), headers_only=dry)
    source = None if problems else hub
    found = _find_experts(whole, placeholders, folders[0], source, download=not dry)
    problems += _expert_problems(whole, found)
    if problems or chosen is None or resolved is None:
        raise InputError.from_problems(str(file.path), problems)
    return _Checked(study, whole.of_file, found.experts, resolved, chosen, hub)


def _primary_problems(study: Study, resolved: Iterable[ResolvedTasks]) -> Iterator[str]:
    """Yield which tasks of the primary comparisons are not evaluated, and why."""
    tasks, skipped = set[str](), dict[str, str]()
    for entry in resolved:
        tasks.update(entry.chosen)
        skipped |= entry.skipped
    for name in sorted({*study.report.primary.tasks} - tasks) if tasks else ():
        why = f": {skipped[name]}" if name in skipped else nearest(name, tasks)
        yield f"report.primary.tasks: {name!r} is not evaluated{why}"


def _item_problems(study: Study, resolved: Iterable[ResolvedTasks]) -> Iterator[str]:
    """Yield which tasks of `evaluate.items` are not evaluated, and which list an item twice."""
    entries = list(resolved)
    tasks = {task for entry in entries for task in (*entry.tasks, *entry.skipped)}
    groups = {name: group.members for entry in entries for name, group in entry.groups.items()}
    for name, rows in study.evaluate.items.items():
        if name in groups:
            yield f"evaluate.items: {name} is a group; name its tasks: {name_list(groups[name])}"
        elif name not in tasks:
            yield f"evaluate.items: {name!r} is not evaluated{nearest(name, sorted(tasks))}"
        if twice := [row for row, count in Counter(rows).items() if count > 1]:
            yield f"evaluate.items: {name} has item {twice[0]} more than once"


def _check_metric(study: Study, resolved: Iterable[ResolvedTasks]) -> None:
    """Check that a task has the metric of the report, where all of them say which they have."""
    metric = study.report.metric
    if metric is None:
        return
    metrics = set(OBSERVED)
    for entry in resolved:
        tasks = fingerprints_of(entry.request, entry.known)
        for task in entry.chosen:
            if not (of_task := tasks.metrics(task)):
                return
            metrics |= of_task
    if metric not in metrics:
        hint = nearest(metric, sorted(metrics))
        raise InputError(f"report.metric: no task has {metric!r}{hint}")


def _make_cells(where: str, checked: _Checked) -> tuple[Study, list[MadeCell], list[Checkpoint]]:
    """Return the study in its models' dtype, its cells, and the headers of what is merged.

    Raises:
        InputError: with every problem of the models, or else of the cells that are made of them.
    """
    experts = checked.experts
    with checked.hub.fetching():
        checkpoints, unfit = _check_experts(checked.study, experts)
    InputError.raise_any(where, unfit)
    show_step(Step("planning the cells"))
    study = _with_dtype(checked.study, checked.base, checkpoints)
    cells, problems = expand(study, experts, checkpoints[0].num_layers if checkpoints else None)
    with checked.hub.fetching():
        made = _tried(problems, checks.made_cells, cells, experts, checkpoints) or []
    donors = list(dict.fromkeys(cell.donor for cell in made if cell.donor is not None))
    problems += checks.lacking_tokenizers(donors, experts)
    if checkpoints:
        recipes = [cell.recipe for cell in cells]
        unfit = unfit_vocabularies(recipes, experts.values(), checkpoints)
        problems += [f"incompatible experts: {problem}" for problem in unfit]
    _tried(problems, check_protocol, study.evaluate, donors)
    for folder in dict.fromkeys(expert.folder for expert in experts.values()):
        with contextlib.suppress(OSError, ValueError):  # the engine says what it cannot read
            _tried(problems, check_context, str(folder), study.evaluate.options.max_model_len)
    InputError.raise_any(where, problems)
    return study, made, checkpoints


def _fetch(checked: _Checked, cells: Sequence[MadeCell], *, dry: bool) -> tuple[Need, ...]:
    """Fetch what cells read of models of the hub; with `dry` return it instead."""
    if not checked.hub.has_partial:
        return ()
    experts, base = checked.experts.values(), checked.base
    if not dry:
        fetch_needed_files(checked.hub, cells, experts, base)
        return ()
    with checked.hub.fetching():
        reads = needed_files(cells, experts, base)
    return tuple(checked.hub.needs(reads.ranges, reads.whole))


class _Shape(NamedTuple):
    """The size of a model; zeros where its headers cannot be read."""

    num_layers: int = 0
    num_weights: int = 0


def _shape(checkpoints: Sequence[Checkpoint], base: Expert) -> _Shape:
    """Return the size of the models, of `base` where nothing is merged."""
    if not checkpoints:
        try:
            checkpoints = [read_checkpoint(base.name, base.folder)]
        except InputError:  # of one model alone its engine says what is wrong
            return _Shape()
    first = checkpoints[0]
    return _Shape(first.num_layers or 0, sum(map(math.prod, first.shapes.values())))


def _notes(
    study: Study, checked: _Checked, done: IdentifiedCells, num_layers: int
) -> Iterator[str]:
    """Yield what a reader of the scores should know; empty texts among it are nothing."""
    experts, of_file = checked.experts, checked.of_file
    yield describe_scaling(study, num_layers)
    yield precision_note(checked.backend, study.evaluate.options)
    yield from checks.plan_notes(study, experts, done.cells)
    yield from dict.fromkeys(_warnings_of_models(done))
    yield from checks.language_notes(study, done.cells, done.task_languages)
    for task, why in checked.resolved[None].skipped.items():
        yield f"{task}: skipped: {why}"
    claimed = [
        name
        for name, expert in experts.items()
        if any(
            claimed_sha256(file) for folder in expert.folders for file in checkpoint_files(folder)
        )
    ]
    if claimed:
        yield (
            f"from the hub's cache: {', '.join(claimed)}: their content is what the hub's names of "
            "the files say, and was not read"
        )
    if of_file and not of_file.keys() & experts.keys():
        yield f"the experts file names none of the study's experts: {', '.join(experts)}"


def _warnings_of_models(done: IdentifiedCells) -> Iterator[str]:
    """Yield the warnings of all merges that are planned, but those of their layers."""
    for cell in done.cells:
        if (merge := done.merges.get(cell.weights_key)) is not None:
            of_layers = {*cell.recipe.plan_warnings(merge.plan)} if merge.plan else set[str]()
            yield from (warning for warning in merge.warnings if warning not in of_layers)


def _tried(
    problems: list[str], function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
) -> _R | None:
    """Return what a function returns; None where it raises an `InputError`, now a problem."""
    try:
        return function(*args, **kwargs)
    except InputError as error:
        problems.append(error.message)
        return None


class _Place(NamedTuple):
    """Where an expert is, and the folder of the file that says so."""

    reference: str
    folder: Path | None


class _WholeStudy(NamedTuple):
    """A study with what its experts file sets: each expert has a name, each language its tasks."""

    study: Study
    problems: Sequence[str]
    """Why tasks of its languages are not known."""

    places: Mapping[str, _Place]
    """Name -> where the expert is."""

    of_file: Mapping[str, str]
    """The names of the experts file alone -> where that has them."""

    experts_file: Path | None
    """None without one, and where a program gave its content."""


def _with_all_files(file: StudyFile, experts_file: Path | ExpertsFile | None) -> _WholeStudy:
    """Return the study as its files make it; `plan_study` adds its models' dtype alone."""
    study, of_file = file.study, dict[str, str]()
    path: Path | None = None
    if experts_file is None:
        experts_file = file.experts_file
    if experts_file is not None:
        if not isinstance(experts_file, ExpertsFile):
            path, experts_file = experts_file, read_experts_file(experts_file)
        of_file = {name: entry.path for name, entry in experts_file.experts.items()}
        study = with_experts_file(study, experts_file, file.settings)
    own = study.experts.places
    study, written = with_names(study, {*own, *of_file})
    places = {
        name: _Place(place, own_folder(file.path)) for name, place in {**own, **written}.items()
    }
    folder = None if path is None else own_folder(path)
    places |= {name: _Place(place, folder) for name, place in of_file.items()}
    study, problems = checks.with_tasks_by_language(study)
    return _WholeStudy(study, problems, places, of_file, path)


class _FoundExperts(NamedTuple):
    """The experts of a study, as far as they are there."""

    experts: dict[str, Expert]
    unknown: Sequence[str]
    """Names of which no file says where the expert is."""

    missing: Mapping[str, LayerSwapError]
    """Name of an expert that is not where it should be -> why."""


def _find_experts(
    whole: _WholeStudy,
    names: Iterable[str],
    folder: Path | None,
    hub: Downloads | None,
    *,
    download: bool,
) -> _FoundExperts:
    """Return the experts of `names`; `folder` is that of the study.

    `hub` is None where the study is wrong already. Then, and once an expert is not there, no other
    is downloaded, but those on the hub are looked for.

    Raises:
        LayerSwapError: where nothing is wrong yet, and the hub or the network fails.
    """
    unknown = [name for name in names if name not in whole.places]
    if not whole.of_file:  # without an experts file a word is a folder, as in a recipe
        unknown = [name for name in unknown if not is_folder(resolve_from(name, folder))]
    experts, missing = dict[str, Expert](), dict[str, LayerSwapError]()
    headers_only = Downloads(headers_only=True)
    for name in names:
        if name in unknown:
            continue
        source = None if unknown or missing else hub
        place = whole.places.get(name, _Place(name, folder))
        try:
            experts[name] = find_model(
                place.reference,
                name=name,
                download=download and source is not None,
                folder=place.folder,
                hub=source or headers_only,
            )
        except LayerSwapError as error:
            if source is not None and not isinstance(error, InputError):
                raise
            missing[name] = error
    return _FoundExperts(experts, unknown, missing)


def _expert_problems(whole: _WholeStudy, found: _FoundExperts) -> Iterator[str]:
    """Yield which experts of a study are not there."""
    unknown = found.unknown
    where = f"{whole.experts_file}: " if whole.experts_file else ""
    if whole.of_file:
        for name in unknown:
            yield f"{where}{_not_in_experts_file(name, whole.study, whole.of_file)}"
    elif unknown:
        yield (
            f"the study does not say where {', '.join(unknown)} is: add --experts FILE, or write a "
            "folder (./math), a hub id or base+adapter for each expert"
        )
    models_of_recipe = {*named_models(whole.study.recipe or {})} - {*whole.of_file, *ROLES}
    roles = f" (a model of the recipe, which also knows {', '.join(ROLES)})"
    for name, error in found.missing.items():
        place = whole.places.get(name)
        is_of_recipe = {name, name if place is None else place.reference} & models_of_recipe
        blamed = where if name in whole.of_file else ""
        yield f"{blamed}{error.message}{roles if is_of_recipe else ''}"


def _not_in_experts_file(name: str, study: Study, places: Mapping[str, str]) -> str:
    """Return that a name is of no expert, with a near one, or how to name another expert."""
    if guess := nearest(name, places):
        return f"no expert {name!r} in the experts file{guess}"
    advice = ""
    for role in ROLES:
        if name in study.experts.names(role):
            code = study.experts.languages().get(name) if role == "language" else None
            value = "NAME" if code is None else f"{{{code}: [NAME]}}"
            advice = f"; for one of them: --set '{EXPERTS}{role}={value}'"
    names = ", ".join(sorted(places))
    return f"no expert {name!r} in the experts file, which names {names}{advice}"


def _check_experts(
    study: Study, experts: Mapping[str, Expert]
) -> tuple[list[Checkpoint], list[str]]:
    """Return the experts' headers, none for models that are not merged, and why they do not fit."""
    if not study.recipe and not set(study.baseline) - {"base"}:
        return [], []
    checkpoints, unfit = compatibility_report(list(experts.values()))
    problems = [f"incompatible experts: {problem}" for problem in unfit]
    if not unfit and checkpoints[0].num_layers is None:
        problems.append(f"the config of {checkpoints[0].name} does not say how many layers")
    return checkpoints, problems


def _with_dtype(study: Study, base: Expert, checkpoints: Sequence[Checkpoint]) -> Study:
    """Return the study with the dtype of all of its models: ``auto`` is that of the base.

    `checkpoints` are those of the experts, the base first; () where nothing is merged.

    One that is stated is its recipe's, too, if that has none.
    """
    evaluate, recipe = study.evaluate, study.recipe
    if evaluate.options.dtype != "auto":
        if not recipe or recipe.keys() & {"dtype", "out_dtype"}:
            return study
        return study.model_copy(update={"recipe": {**recipe, "dtype": evaluate.options.dtype}})
    parent = checkpoints[0] if checkpoints else read_checkpoint(base.name, base.folder)
    options = {"options": evaluate.options.with_stored_dtype(parent.dtype)}
    return study.model_copy(update={"evaluate": evaluate.model_copy(update=options)})


def tasks_by_language(
    study: Study, isolation: Isolation | None = None
) -> dict[str | None, ResolvedTasks]:
    """Return language -> the tasks of its cells; None is a model without a language.

    Raises:
        InputError: for unknown tasks, or where all are skipped.
    """
    evaluate = study.with_folders(Path.absolute).evaluate  # workers may work elsewhere
    by_language = dict[str | None, ResolvedTasks]()
    settings = {name: getattr(evaluate, name) for name in EvaluationSettings.model_fields}
    for language in (None, *study.experts.languages().values()):
        # A model without a language gets the tasks of all.
        lists = [tasks for code, tasks in evaluate.languages.items() if language in (None, code)]
        settings["tasks"] = tuple(dict.fromkeys(itertools.chain(evaluate.tasks, *lists)))
        if not settings["tasks"] or not all(map(is_folder, evaluate.task_folders)):
            continue  # a problem of the study
        resolved = resolve(EvaluationRequest(**settings, isolation=isolation))
        if language is None and not resolved.chosen:
            reasons = ", ".join(dict.fromkeys(resolved.skipped.values()))
            raise InputError(f"every task of the study is skipped: {reasons}")
        by_language[language] = resolved
    return by_language
