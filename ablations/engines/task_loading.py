"""From the names of a request to lm-eval's task objects with their data.

Task files are looked for in the request's folders; what is not there is looked for among lm-eval's
own tasks, whose index is read only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ablations.engines.quiet import quietly
from ablations.engines.task_faults import check_config, task_errors
from ablations.machine.progress import Step, tell
from ablations.scoring.records import EvaluationRequest
from ablations.tasks.contents import with_placed_data
from ablations.tasks.mbpp import find_isolation
from layerswap_method.errors import InputError, LayerSwapError, nearest, with_valid

NEEDS_CODE_EXECUTION = "needs --allow-code-execution"
"""Why a task that executes generated code is skipped."""

_LISTED = 12
"""Known names that a message about an unknown task has."""

_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata"}
"""What a group's file says of the group; everything else goes to its members."""


class Choice(NamedTuple):
    """The tasks of a request."""

    asked: tuple[str, ...]
    """Names to hand to lm-eval, each task once, in the order of the request."""

    skipped: dict[str, str]
    """Task -> why it is skipped."""

    runs_code: bool
    """Whether one of `asked` executes what the model writes."""


def check_tasks(request: EvaluationRequest) -> Choice:
    """Return which tasks would be evaluated and which skipped; loads no model and no data.

    A group of plain names becomes those names, so that two groups may share a task (lm-eval
    refuses that) and a group survives one task that is skipped.

    Raises:
        InputError: naming every unknown task with the nearest known one, and every group that
            gives its members settings: a record is of one task.
    """
    index = task_manager(request).task_index
    choice = _choose(index, request)
    groups = [name for name in choice.asked if index[name].kind.name == "GROUP"]
    if groups:
        members = {name: ", ".join(_members(index[name].cfg)) for name in groups}
        raise InputError(
            "\n".join(
                f"task group {name!r} gives its members settings of its own, which only plain "
                f"lm-eval scores; name its members with settings in their own files ({listed})"
                for name, listed in members.items()
            )
        )
    return choice


def load_tasks(request: EvaluationRequest) -> tuple[list[Any], dict[str, str]]:
    """Return lm-eval's task objects of the request with their data, and what is skipped.

    Raises:
        InputError: for unknown tasks, a task whose file or data is wrong, one that executes code
            on a machine that can hold none, or one that the protocol does not fit.
        DataAway: where the data is on a hub that cannot be reached.
    """
    manager = task_manager(request)
    choice = _choose(manager.task_index, request)
    if choice.runs_code:
        # Where there is none, that is said before the model has answered for an hour.
        find_isolation(request.code_isolation)
    tasks: list[Any] = []
    for name in choice.asked:
        tell(Step(f"reading the data of {name}"))
        with task_errors(name, manager.task_index[name].yaml_path), quietly():
            loaded = manager.load([name])
        groups = loaded.get("groups", {})
        tasks += [groups[name]] if name in groups else loaded["tasks"].values()
    single = [each for task in tasks for each in _tasks(task)]
    if rolling := [t.task_name for t in single if t.OUTPUT_TYPE == "loglikelihood_rolling"]:
        raise InputError(
            f"task {', '.join(rolling)}: it scores the likelihood of whole texts "
            "(loglikelihood_rolling), which has no answers to keep; use plain lm-eval"
        )
    given = [task.task_name for task in single if not generates(task)]
    if request.protocol.enable_thinking and given:
        raise InputError(
            f"enable_thinking: {', '.join(given)} scores given answers, before which no model "
            "thinks; leave such tasks out, or ask them without enable_thinking"
        )
    return tasks, choice.skipped


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


def generates(task: Any) -> bool:
    """Return whether a task, or one of a group, has answers generated."""
    return any(each.OUTPUT_TYPE == "generate_until" for each in _tasks(task))


def task_manager(request: EvaluationRequest) -> Any:
    """Return lm-eval's task manager, which knows every task of the request.

    Raises:
        InputError: for a folder that is not there, or unknown tasks.
    """
    tell(Step("reading the task files"))
    if not request.include_path.is_dir():
        raise InputError(f"{request.include_path}: no such folder of lm-eval task files")
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"{request.data_dir}: no such folder of task data")
    files = (path for folder in request.folders for path in folder.rglob("*"))
    states = frozenset((path, path.stat().st_mtime_ns) for path in files if path.is_file())
    manager, own = _manager(request.folders, request.data_dir, states)
    if not own:
        raise InputError(f"{request.include_path}: has no lm-eval task file (*.yaml)")
    if any(task not in own for task in request.tasks):
        _check_names(request, own)
        # What the folders have goes before what lm-eval has under the same name.
        manager.task_index.update({**lm_eval_index(), **manager.task_index})
    return manager


@lru_cache(8)
def _manager(
    folders: Sequence[Path], data_dir: Path | None, states: frozenset[tuple[Path, int]]
) -> tuple[Any, tuple[str, ...]]:
    """Return lm-eval's task manager of `folders`, whose files have `states`, and their names."""
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._factory import TaskFactory

    class Factory(TaskFactory):  # type: ignore[misc]
        """lm-eval's, which also finds data next to a task's file, and checks the file."""

        def _load_full_config(self, entry: Any, overrides: Any = None) -> dict[str, Any]:
            config: dict[str, Any] = super()._load_full_config(entry, overrides)
            if entry.yaml_path is not None:
                config = with_placed_data(config, entry.yaml_path.parent)
                check_config(config, entry.yaml_path)
            return config

    # Tasks hand their metadata to the function that loads their data; see ablations/tasks.
    metadata = None if data_dir is None else {"data_dir": str(data_dir.absolute())}
    last_wins = [str(folder) for folder in reversed(folders)]
    manager = TaskManager(include_path=last_wins, include_defaults=False, metadata=metadata)
    manager._factory = Factory(meta=metadata)
    return manager, tuple(sorted(manager.task_index))


@cache
def lm_eval_index() -> Mapping[str, Any]:
    """Return lm-eval's index of its own tasks: ten thousand files, some eight seconds."""
    from lm_eval.tasks import TaskManager

    tell(Step("reading lm-eval's index of tasks"))
    return dict(TaskManager().task_index)


def lm_eval_file(name: str) -> Path | None:
    """Return the file of one of lm-eval's own tasks or groups; None for other names."""
    entry = lm_eval_index().get(name)
    return None if entry is None else entry.yaml_path


def _check_names(request: EvaluationRequest, own: Sequence[str]) -> None:
    known = lm_eval_index()
    problems = [
        f"unknown task {name!r}{nearest(name, own) or nearest(name, known)}"
        for name in request.tasks
        if name not in own and name not in known
    ]
    if problems:
        listed = list(own[:_LISTED])
        if len(own) > _LISTED:
            listed.append(f"{len(own) - _LISTED} more (layerswap tasks)")
        listed.append("and lm-eval's own tasks (lm-eval ls tasks)")
        problems[-1] = with_valid(problems[-1], listed)
        raise InputError.from_problems(str(request.include_path), problems)


def _choose(index: Mapping[str, Any], request: EvaluationRequest) -> Choice:
    asked: dict[str, None] = {}
    skipped: dict[str, str] = {}
    runs_code = False
    for name in (leaf for task in request.tasks for leaf in _leaves(index, task)):
        is_unsafe = _runs_code(index, name)
        if is_unsafe and not request.allow_code_execution:
            skipped[name] = NEEDS_CODE_EXECUTION
        else:
            asked[name] = None
            runs_code |= is_unsafe
    return Choice(tuple(asked), skipped, runs_code)


def _leaves(index: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the tasks of a tag or a group; a group that changes its members stays one."""
    entry = index[name]
    if entry.kind.name == "TAG":
        yield from sorted(entry.tags)
        return
    members = entry.cfg.get("task") if entry.kind.name == "GROUP" else None
    is_plain = isinstance(members, list) and all(
        isinstance(member, str) and member in index for member in members
    )
    if members is None or not is_plain or entry.cfg.keys() - _GROUP_KEYS:
        yield name
        return
    for member in members:
        yield from _leaves(index, member)


def _runs_code(index: Mapping[str, Any], name: str) -> bool:
    entry = index.get(name)
    if entry is None or entry.cfg is None:
        return False
    configs = [entry.cfg]
    members = entry.cfg.get("task") if entry.kind.name == "GROUP" else None
    configs += [member for member in members or () if isinstance(member, dict)]
    return any(config.get("unsafe_code") for config in configs) or (
        members is not None and any(_runs_code(index, member) for member in _members(entry.cfg))
    )


def _members(group: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's members."""
    members = group.get("task") or ()
    return [str(each.get("task") if isinstance(each, dict) else each) for each in members]


def _tasks(task: Any) -> list[Any]:
    """Return the tasks of a group, or the task itself."""
    return list(task.get_all_tasks()) if hasattr(task, "get_all_tasks") else [task]
