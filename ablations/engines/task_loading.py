"""From the names of a request to lm-eval's task objects with their data.

Task files are looked for in the request's folders; what is not there is looked for among lm-eval's
own tasks, whose index is read only then.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ablations.engines.answering import task_limit
from ablations.engines.quiet import quietly
from ablations.engines.task_index import lm_eval_folder, lm_eval_index, names_in_files
from ablations.machine.progress import Step, show_step
from ablations.models.load import without_code_of_tokenizers
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.groups import ScoredGroup, group_metrics
from ablations.tasks.catalog import floor_of, list_tasks
from ablations.tasks.data import DataAway
from ablations.tasks.mbpp import find_isolation
from ablations.tasks.task_fingerprint import local_data
from ablations.tasks.task_yaml import check_task_files, paths_below, with_placed_data
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest, with_valid

_NETWORK = ("requests", "httpx", "huggingface_hub", "urllib3", "aiohttp")
"""Packages whose errors are about a hub or the way to it."""

_NOT_CACHED = ("Couldn't find cache for", "Couldn't find a module script")
"""Texts of datasets and evaluate, offline, for a data set of which they have only other parts, and
for a metric."""

NEEDS_CODE_EXECUTION = "needs --allow-code-execution"
"""Why a task that executes generated code is skipped."""

_LISTED = 12
"""Known names that a message about an unknown task has."""

_NEAR = 0.75
"""Nearness from which a name of lm-eval's ten thousand is worth a hint."""

_ASKS = re.compile(r"--(model_args|metadata)|No tokenizer|missing .* required .*argument")
"""Words of tasks that lack an argument."""

_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}
"""Keys of a group's file that are the group's; all others go to its members."""


class TaskFault(InputError):
    """No model can run this task until its file, or the place of its data, is mended."""


class TaskChoice(NamedTuple):
    """The tasks of a request."""

    chosen: tuple[str, ...]
    """Names of tasks, and of groups that are one, each once, in the order of the request."""

    skipped: dict[str, str]
    """Task -> why it is skipped."""

    runs_code: bool
    """Whether a chosen task executes what the model writes."""

    groups: Mapping[str, ScoredGroup] = MappingProxyType({})
    """The groups among the chosen."""


def check_tasks(request: EvaluationRequest) -> TaskChoice:
    """Return which tasks would be evaluated and which skipped; loads no model and no data.

    A group that lm-eval scores by the mean over all items stays one. A tag, and any other group of
    plain names, becomes those names, so that two groups may share a task (lm-eval refuses that) and
    a group survives one task that is skipped.

    Raises:
        InputError: naming every unknown task with the nearest known one, and every group that
            gives its members settings: a record is of one task.
    """
    index = task_manager(request).task_index
    problems = list[str]()
    groups = dict[str, ScoredGroup]()
    leaves = (leaf for task in request.tasks for leaf in _leaves(index, task, problems, groups))
    names = tuple(dict.fromkeys(leaves))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    unsafe = [name for name in names if _content(index[name]).get("unsafe_code")]
    if request.isolation is not None:
        return TaskChoice(names, {}, bool(unsafe), groups)
    chosen = tuple(name for name in names if name not in unsafe)
    return TaskChoice(chosen, dict.fromkeys(unsafe, NEEDS_CODE_EXECUTION), False, groups)


def load_tasks(request: EvaluationRequest) -> tuple[list[Any], dict[str, str]]:
    """Return lm-eval's task objects of the request with their data, and what is skipped.

    Raises:
        InputError: for unknown tasks, a task whose file or data is wrong, one that executes code
            on a machine that can hold none, or one that the protocol does not fit.
        DataAway: where the data is on a hub that cannot be reached.
    """
    choice, manager = check_tasks(request), task_manager(request)
    if choice.runs_code:
        # Where there is none, that is said before the model has answered for an hour.
        find_isolation(request.isolation)
    tasks: list[Any] = []
    members = ((choice.groups[n].members if n in choice.groups else (n,)) for n in choice.chosen)
    for name in dict.fromkeys(chain(*members)):
        show_step(Step(f"reading the data of {name}"))
        place = manager.task_index[name].yaml_path
        with (
            task_errors(name, place),
            quietly(),
            _no_bytecode(),
            _seeded(request.seed),
            without_code_of_tokenizers(),
        ):
            loaded = manager.load([name])["tasks"].values()
            for task in loaded:
                _check_settings(task)
            tasks += loaded
    if rolling := [t.task_name for t in tasks if t.OUTPUT_TYPE == "loglikelihood_rolling"]:
        raise InputError(
            f"task {', '.join(rolling)}: it scores the likelihood of whole texts "
            "(loglikelihood_rolling), which has no answers to store; use plain lm-eval"
        )
    if pictured := [t.task_name for t in tasks if getattr(t, "MULTIMODAL", False)]:
        raise InputError(
            f"task {', '.join(pictured)}: it shows images or sounds, which models of text cannot "
            "see; use plain lm-eval with a model that can"
        )
    choosing = [task.task_name for task in tasks if not generates(task)]
    if request.enable_thinking and choosing:
        raise InputError(
            f"enable_thinking: {', '.join(choosing)} scores given answers, before which no model "
            "thinks; leave such tasks out, or evaluate them without it"
        )
    return tasks, choice.skipped


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Have what the block draws without a seed of its own, such as the items of RULER, be equal."""
    import numpy as np

    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - lm-eval's tasks use it
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Let Python store no compiled file of what the block imports, such as a task's functions.

    It takes one for a file of another content that was written at the same time, as large as that.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _check_settings(task: Any) -> None:
    """Raise ValueError for what lm-eval would find wrong only after the answers."""
    config, has_function = task.config, bool(task.config.process_results)
    floor_of(config.metadata)
    task_limit(config.generation_kwargs or {})
    metrics = getattr(task, "_metric_fn_list", None)
    aggregations = getattr(task, "_aggregation_list", None)
    if (metrics == {} and not has_function) or not getattr(task, "_filters", True):
        raise ValueError("an empty metric_list or filter_list")
    tables: dict[str, Any] = {
        "metric": {} if has_function else metrics,
        "aggregation": aggregations,
    }
    for kind, functions in tables.items():
        if unknown := [name for name, function in (functions or {}).items() if function is None]:
            raise ValueError(f"no {kind} {', '.join(map(repr, unknown))}")


def check_data(requests: Iterable[EvaluationRequest]) -> None:
    """Load the data of every request once, so that an error comes before a model is loaded.

    Raises:
        InputError: with every problem, where the user can mend one.
        LayerSwapError: with every problem, where all of them are of a hub.
    """
    problems: list[LayerSwapError] = []
    for request in requests:
        try:
            load_tasks(request)
        except LayerSwapError as error:
            problems.append(error)
    raise_problems(problems)


def raise_problems(problems: Sequence[LayerSwapError]) -> None:
    """Raise one error of what is wrong with the data of tasks; do nothing where nothing is.

    Raises:
        InputError: where one of `problems` is one.
        LayerSwapError: where there are only others.
    """
    texts = list(dict.fromkeys(problem.message for problem in problems))
    if len(texts) > 1:
        texts = [InputError.from_problems("data of the tasks", texts).message]
    if any(isinstance(problem, InputError) for problem in problems):
        raise InputError(*texts)
    if problems:
        raise LayerSwapError(*texts)


@contextmanager
def task_errors(name: str, file: Path | None) -> Iterator[None]:
    """Raise what goes wrong with a task in the block as an error that says what to do.

    Args:
        name: of the task.
        file: its YAML file, if it has one.

    Raises:
        TaskFault: where the task's file or its data is wrong.
        DataAway: where the hub cannot be reached.
    """
    try:
        yield
    except LayerSwapError as error:
        if type(error) not in (InputError, DataAway) or error.message.startswith("task "):
            raise
        raise type(error)(f"task {name}: {error.message}") from error
    except (Exception, SystemExit) as error:  # a task's own code may raise anything
        if _is_about_a_hub(error):
            raise DataAway(
                f"task {name}: its data is not on this machine and the hub cannot be reached "
                f"({describe_error(error)}); run this where there is a network, without "
                "HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or leave the task out"
            ) from error
        where = "" if file is None else f" ({file})"
        if isinstance(error, ImportError):
            raise TaskFault(
                f"task {name}: it needs a package that is not installed: "
                f"{describe_error(error)}{where}"
            ) from error
        if _ASKS.search(str(error)):
            raise TaskFault(
                f"task {name}: it asks for an argument: {describe_error(error)}{where}; give it "
                "here with --metadata NAME=VALUE, such as tokenizer=MODEL, or in a study with "
                "evaluate: {metadata: {NAME: VALUE}}"
            ) from error
        kind = "data" if isinstance(error, OSError) else "file or data"
        raise TaskFault(
            f"task {name}: its {kind} cannot be read: {describe_error(error)}{where}"
        ) from error


def _is_about_a_hub(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__module__.partition(".")[0] in _NETWORK
        or str(error).startswith(_NOT_CACHED)
        or _is_about_a_hub(error.__cause__ or error.__context__)
    )


def generates(task: Any) -> bool:
    """Return whether a task of lm-eval has answers generated."""
    return bool(task.OUTPUT_TYPE == "generate_until")


def task_manager(request: EvaluationRequest) -> Any:
    """Return lm-eval's task manager, which knows every task of the request.

    Raises:
        InputError: for a folder that does not exist, or unknown tasks.
    """
    show_step(Step("reading the task files"))
    for folder in request.task_folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of lm-eval task files")
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"{request.data_dir}: no such folder of task data")
    files = (path for folder in request.folders for path in paths_below(folder))
    stats = ((path, path.stat()) for path in files if path.is_file())
    # The inode and the time of change, too: a restored time of writing hides another file.
    states = frozenset((path, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats)
    # Tasks hand their metadata to the function that loads their data; see ablations/tasks.
    metadata = dict(request.metadata)
    if request.data_dir is not None:
        metadata["data_dir"] = str(request.data_dir.absolute())
    manager, names = _manager(request.folders, json.dumps(metadata, sort_keys=True), states)
    for folder in request.task_folders:
        if not names[folder]:
            nothing = f"{folder}: has no lm-eval task file (*.yaml)"
            raise InputError("; ".join([nothing, *_unreadable(folder)]))
    own = sorted({*chain(*names.values())})
    if any(task not in own for task in request.tasks):
        _check_names(request, own)
        # What the folders have goes before what lm-eval has under the same name.
        manager.task_index.update({**_lm_eval_entries(), **manager.task_index})
    return manager


@lru_cache(8)
def _manager(
    folders: Sequence[Path], metadata: str, states: frozenset[tuple[Path, int, int, int]]
) -> tuple[Any, Mapping[Path, Sequence[str]]]:
    """Return lm-eval's task manager of `folders`, whose files have `states`, and their names.

    `metadata` is JSON.
    """
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._factory import TaskFactory
    from lm_eval.tasks._index import TaskIndex

    check_task_files(folders)

    class Factory(TaskFactory):  # type: ignore[misc]
        """lm-eval's, which also finds data next to a task's file."""

        def _load_full_config(self, entry: Any, overrides: Any = None) -> dict[str, Any]:
            config: dict[str, Any] = super()._load_full_config(entry, overrides)
            place = entry.yaml_path
            return _with_own_cache(
                config if place is None else with_placed_data(config, place.parent)
            )

    indices = {folder: TaskIndex.build([folder]) for folder in folders}
    manager = TaskManager(include_defaults=False)
    manager._factory = Factory(meta=json.loads(metadata))
    for folder in reversed(folders):  # the first one wins
        manager.task_index.update(indices[folder])
    return manager, {folder: tuple(index) for folder, index in indices.items()}


def _with_own_cache(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a task's file with a cache of datasets for its local files.

    That of datasets knows files by name and time of writing: of another content under an old time,
    as archives and copies have it, it gives the old items.
    """
    from datasets import config as defaults

    if (content := local_data(config)) is None:
        return config
    options = config.get("dataset_kwargs") or {}
    folder = Path(options.get("cache_dir") or defaults.HF_DATASETS_CACHE)
    place = str(folder / f"layerswap-{content[:20]}")
    return {**config, "dataset_kwargs": {**options, "cache_dir": place}}


@cache
def _lm_eval_entries() -> Mapping[str, Any]:
    """Return name -> lm-eval's own entry of all its tasks, without the contents of their files."""
    from lm_eval.tasks._index import Entry, Kind

    folder = lm_eval_folder()
    return {
        name: Entry(
            name,
            Kind[task.kind],
            None if task.file is None else folder / task.file,
            tags={*task.members},
        )
        for name, task in lm_eval_index().items()
    }


def _content(entry: Any) -> dict[str, Any]:
    """Return the content of the file of an entry, with what it includes; functions as text."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if entry.cfg is None and entry.yaml_path is not None:
        entry.cfg = load_yaml(entry.yaml_path, resolve_func=False)
    return entry.cfg or {}


def _check_names(request: EvaluationRequest, own: Sequence[str]) -> None:
    """Raise for names that neither the folders nor lm-eval have.

    Where each of them is near one of the folders', lm-eval's index is not needed for the hints: to
    read it takes minutes on a busy machine.
    """
    names = [name for name in request.tasks if name not in own]
    hints = {name: nearest(name, own) for name in names}
    problems = list[str]()
    if any(hints.values()):
        mentioned = names_in_files(names)
        unknown = [name for name in names if name not in mentioned]
        if all(hints[name] for name in unknown):
            problems = [f"unknown task {name!r}{hints[name]}" for name in unknown]
    if not problems:
        index = lm_eval_index()
        valid = {*index, *(task.name for task in list_tasks())}
        problems = [
            f"unknown task {name!r}{hints[name] or nearest(name, valid, _NEAR)}"
            for name in names
            if name not in index
        ]
    if not problems:
        return
    if request.include_path:
        listed = list(own[:_LISTED])
        if len(own) > _LISTED:
            listed.append(f"{len(own) - _LISTED} more")
        listed.append("and lm-eval's own tasks (lm-eval ls tasks)")
        where = ", ".join(map(str, request.include_path))
    else:
        listed = [
            "the paper's benchmarks (layerswap tasks)",
            "lm-eval's own tasks (lm-eval ls tasks)",
            "and those of a folder that --include-path names, or include_path: in a file",
        ]
        where = "tasks"
    problems[-1] = with_valid(problems[-1], listed)
    problems += chain(*map(_unreadable, request.include_path))
    raise InputError.from_problems(where, problems)


def _unreadable(folder: Path) -> Iterator[str]:
    """Yield the task files that lm-eval skips without a word, each with what is wrong with it."""
    from lm_eval.tasks._yaml_loader import load_yaml

    for path in sorted(folder.rglob("*.yaml")):
        try:
            load_yaml(path, resolve_func=False)
        except Exception as error:
            yield f"{path} cannot be read: {' '.join(str(error).split())}"


def _leaves(
    index: Mapping[str, Any], name: str, problems: list[str], groups: dict[str, ScoredGroup]
) -> Iterator[str]:
    """Yield the tasks of a tag or a group; add groups that are one; note one that changes members.

    A group of which a member runs code is none: without leave, the others are evaluated.
    """
    entry = index[name]
    content = _content(entry)
    if entry.kind.name == "TAG":
        yield from sorted(entry.tags)
        return
    if entry.kind.name != "GROUP":
        yield name
        return
    members = content.get("task") or []
    is_plain = all(isinstance(member, str) and member in index for member in members)
    if is_plain and members and not content.keys() - _GROUP_KEYS:
        inner: dict[str, ScoredGroup] = {}
        leaves = [leaf for member in members for leaf in _leaves(index, member, problems, inner)]
        if content.get("aggregate_metric_list"):
            parts = (inner[leaf].members if leaf in inner else (leaf,) for leaf in leaves)
            tasks = tuple(dict.fromkeys(chain(*parts)))
            contents = [_content(index[task]) for task in tasks]
            is_safe = not any(part.get("unsafe_code") for part in contents)
            if is_safe and (metrics := group_metrics(content, contents)):
                groups[name] = ScoredGroup(tasks, metrics)
                yield name
                return
        groups |= inner
        yield from leaves
        return
    named = [str(member.get("task") if isinstance(member, dict) else member) for member in members]
    problems.append(
        f"task group {name!r} gives its members settings of its own, which only plain lm-eval "
        f"scores; name its members with settings in their own files ({', '.join(named)})"
    )
