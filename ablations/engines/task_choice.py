"""The tasks that the names of a request mean, among those that its folders and lm-eval offer.

Task files are looked for in the request's folders; what is not there is looked for among lm-eval's
own tasks, whose index is read only then. No data is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ablations.engines.task_index import lm_eval_folder, lm_eval_index
from ablations.machine.progress import Step, show_step
from ablations.sandbox import Isolation
from ablations.scoring.evaluation import EvaluationRequest
from ablations.scoring.groups import ScoredGroup, group_metrics
from ablations.tasks.catalog import list_tasks
from ablations.tasks.task_yaml import paths_below, with_placed_data
from layerswap_method.errors import InputError, nearest, with_valid

NEEDS_CODE_EXECUTION = "needs --allow-code-execution"
"""Why a task that executes generated code in the sandbox is skipped."""

NEEDS_NO_SANDBOX = (
    "it runs generated programs by itself, not in the sandbox, and needs --allow-code-execution "
    "--code-isolation none"
)
"""Why a task that executes generated code in this process is skipped."""

_SANDBOXED = ("ablations.tasks.mbpp.run_answers", "ablations.tasks.mbpp.score")
"""Functions of a task whose programs run in the sandbox: filter and score."""

_LISTED = 12
"""Known names that a message about an unknown task has."""

_NEAR = 0.75
"""Nearness from which a name of lm-eval's ten thousand is worth a hint."""

_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}
"""Keys of a group's file that are the group's; all others go to its members."""


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
    unsafe = {
        name: content for name in names if (content := _content(index[name])).get("unsafe_code")
    }
    reasons = {name: _why_not_run(content, request.isolation) for name, content in unsafe.items()}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    chosen = tuple(name for name in names if name not in skipped)
    return TaskChoice(chosen, skipped, any(name in unsafe for name in chosen), groups)


def _why_not_run(content: Mapping[str, Any], isolation: Isolation | None) -> str | None:
    """Return why a task that executes generated code is skipped; None where it may run.

    The sandbox holds the programs of those that ask it. All others (lm-eval's own, such as
    cruxeval, and a user's) execute them in this process, which nothing but the user can allow.
    """
    steps = [step for part in content.get("filter_list") or () for step in part.get("filter") or ()]
    functions = [*(step.get("filter_fn") for step in steps), content.get("process_results")]
    is_sandboxed = all(any(str(f).endswith(name) for f in functions) for name in _SANDBOXED)
    if is_sandboxed:
        return None if isolation is not None else NEEDS_CODE_EXECUTION
    return None if isolation == "none" else NEEDS_NO_SANDBOX


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
            raise InputError(
                "; ".join([f"{folder}: has no lm-eval task file (*.yaml)", *_unreadable(folder)])
            )
    names_of_folders = sorted({*chain(*names.values())})
    if any(task not in names_of_folders for task in request.tasks):
        _check_names(request, names_of_folders)
        # Tasks of the folders go before those that lm-eval has under the same names.
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

    class Factory(TaskFactory):  # type: ignore[misc]
        """lm-eval's, which also finds data next to a task's file."""

        def _load_full_config(self, entry: Any, overrides: Any = None) -> dict[str, Any]:
            config: dict[str, Any] = super()._load_full_config(entry, overrides)
            place = entry.yaml_path
            return config if place is None else with_placed_data(config, place.parent)

    indices = {folder: TaskIndex.build([folder]) for folder in folders}
    manager = TaskManager(include_defaults=False)
    manager._factory = Factory(meta=json.loads(metadata))
    for folder in reversed(folders):  # the first one wins
        manager.task_index.update(indices[folder])
    return manager, {folder: tuple(index) for folder, index in indices.items()}


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


def _check_names(request: EvaluationRequest, names_of_folders: Sequence[str]) -> None:
    """Raise for names that neither the folders nor lm-eval have."""
    index = lm_eval_index()
    unknown = [name for name in request.tasks if name not in index and name not in names_of_folders]
    if not unknown:
        return
    valid = {*index, *(task.name for task in list_tasks())}
    problems = [
        f"unknown task {name!r}{nearest(name, names_of_folders) or nearest(name, valid, _NEAR)}"
        for name in unknown
    ]
    if request.include_path:
        listed = list(names_of_folders[:_LISTED])
        if len(names_of_folders) > _LISTED:
            listed.append(f"{len(names_of_folders) - _LISTED} more")
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
