"""From the names of a request to lm-eval's task objects with their data. Knows no model.

Task files are looked for in the request's folders; what is not there is looked for among lm-eval's
own tasks, whose index is read only then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.engines import lm_eval_index
from ablations.engines.quiet import quietly
from ablations.engines.task_choice import Choice, choose_tasks
from ablations.engines.task_faults import check_config, told_faults
from ablations.machine.progress import Step, tell
from ablations.scoring.records import EvaluationRequest
from ablations.tasks.mbpp import find_isolation
from ablations.tasks.own_data import with_placed_data
from layerswap_method.errors import InputError, LayerSwapError, nearest, with_valid

_LISTED = 12
"""Known names that a message about an unknown task has."""


def load_tasks(request: EvaluationRequest) -> tuple[list[Any], dict[str, str]]:
    """Return lm-eval's task objects of the request with their data, and what is skipped.

    Raises:
        InputError: for unknown tasks, a task whose file or data is wrong, or one that executes code
            on a machine that can hold none.
        DataAway: where the data is on a hub that cannot be asked.
    """
    manager = task_manager(request)
    choice = _choose(manager, request)
    if choice.runs_code:
        # Where there is none, that is said before the model has answered for an hour.
        find_isolation(request.code_isolation)
    tasks: list[Any] = []
    for name in choice.asked:
        tell(Step(f"reading the data of {name}"))
        with told_faults(name, manager.task_index[name].yaml_path), quietly():
            loaded = manager.load([name])
        groups = loaded.get("groups", {})
        tasks += [groups[name]] if name in groups else loaded["tasks"].values()
    _check_output_types(tasks)
    if request.protocol.enable_thinking:
        chosen = [each for task in tasks for each in _members(task) if not generates(each)]
        if chosen:
            raise InputError(
                f"enable_thinking: {', '.join(each.task_name for each in chosen)} scores given "
                "answers, before which no model thinks; leave such tasks out, or ask them without "
                "enable_thinking"
            )
    return tasks, choice.skipped


def build_requests(request: EvaluationRequest, most: int) -> tuple[int, list[Any]]:
    """Return how many items a task has, and what lm-eval would ask of the first `most` of them.

    Args:
        request: of a single task.
        most: items whose requests are built.

    Raises:
        InputError: as `load_tasks`.
        LayerSwapError: as `load_tasks`, or for a group that changes its members.
    """
    (task,), _ = load_tasks(request)
    if not hasattr(task, "build_all_requests"):
        raise LayerSwapError(f"{request.tasks[0]} is a group with settings of its own")
    items = min(len(task.eval_docs), request.limit or sys.maxsize)
    with told_faults(request.tasks[0], None), quietly():
        task.set_fewshot_seed(seed=request.seed)
        task.build_all_requests(limit=min(items, most))
    return items, list(task.instances)


def check_data(requests: Iterable[EvaluationRequest]) -> None:
    """Load the data of every request once: what is missing is said before a model is loaded.

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
    if not problems:
        return
    texts = list(dict.fromkeys(problem.message for problem in problems))
    whole = (
        InputError.from_problems("data of the tasks", texts)
        if len(texts) > 1
        else InputError(texts[0])
    )
    if any(isinstance(problem, InputError) for problem in problems):
        raise whole
    raise LayerSwapError(whole.message)


def check_tasks(request: EvaluationRequest) -> Choice:
    """Return what would be asked and what skipped, before any model or data is loaded.

    Raises:
        InputError: naming every unknown task with the nearest known one.
    """
    manager = task_manager(request)
    choice = _choose(manager, request)
    _check_groups(manager.task_index, choice.asked)
    return choice


def _check_groups(index: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that no group is left that gives its members settings: a record is of one task.

    Raises:
        InputError: naming each such group and its members.
    """
    problems = []
    for name in names:
        members = (index[name].cfg or {}).get("task") if index[name].kind.name == "GROUP" else None
        if members is not None:
            listed = [each.get("task") if isinstance(each, dict) else each for each in members]
            problems.append(
                f"task group {name!r} gives its members settings of its own, which only plain "
                "lm-eval scores; name its members with settings in their own files "
                f"({', '.join(map(str, listed))})"
            )
    if problems:
        raise InputError("\n".join(problems))


def _check_output_types(tasks: Iterable[Any]) -> None:
    """Check that answers of tasks can be scored here.

    Raises:
        InputError: for tasks that score whole texts.
    """
    rolling = [
        each.task_name
        for task in tasks
        for each in _members(task)
        if each.OUTPUT_TYPE == "loglikelihood_rolling"
    ]
    if rolling:
        raise InputError(
            f"task {', '.join(rolling)}: it scores the likelihood of whole texts "
            "(loglikelihood_rolling), which has no answers to keep; use plain lm-eval"
        )


def _choose(manager: Any, request: EvaluationRequest) -> Choice:
    return choose_tasks(
        manager.task_index, request.tasks, allow_code_execution=request.allow_code_execution
    )


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
    manager = _manager_of_folders(request)
    index: dict[str, Any] = manager.task_index
    own = sorted(index)
    if not own:
        raise InputError(f"{request.include_path}: has no lm-eval task file (*.yaml)")
    others = [task for task in request.tasks if task not in index]
    if others:
        # What the folders have goes before what lm-eval has under the same name.
        index |= {**_lm_eval_entries(request.include_path, own, others), **index}
    return manager


def _manager_of_folders(request: EvaluationRequest) -> Any:
    """Return lm-eval's task manager of the request's folders alone."""
    from lm_eval.tasks import TaskManager

    # Tasks hand their metadata to the function that loads their data; see ablations/tasks.
    metadata = None if request.data_dir is None else {"data_dir": str(request.data_dir.absolute())}
    folders = [str(folder) for folder in reversed(request.folders)]  # the last one wins
    manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
    manager._factory = _factory(metadata)
    return manager


def _factory(metadata: dict[str, str] | None) -> Any:
    """Return what makes lm-eval's task objects, from files that were checked."""
    from lm_eval.tasks._factory import TaskFactory

    class Factory(TaskFactory):  # type: ignore[misc]
        """lm-eval's, which also finds data that is beside a task's file."""

        def _load_full_config(self, entry: Any, overrides: Any = None) -> dict[str, Any]:
            config: dict[str, Any] = super()._load_full_config(entry, overrides)
            if entry.yaml_path is not None:
                config = with_placed_data(config, entry.yaml_path.parent)
                check_config(config, entry.yaml_path)
            return config

    return Factory(meta=metadata)


def _lm_eval_entries(folder: Path, own: list[str], names: list[str]) -> dict[str, Any]:
    """Return lm-eval's entries of names that are not in the folders of a request.

    Raises:
        InputError: naming every unknown name with the nearest known one.
    """
    known = lm_eval_index.names()
    problems = [
        f"unknown task {name!r}{nearest(name, own) or nearest(name, known)}"
        for name in names
        if name not in known
    ]
    if problems:
        listed = own[:_LISTED]
        if len(own) > _LISTED:
            listed.append(f"{len(own) - _LISTED} more (layerswap tasks)")
        listed.append("and lm-eval's own tasks (lm-eval ls tasks)")
        problems[-1] = with_valid(problems[-1], listed)
        raise InputError.from_problems(str(folder), problems)
    entries = lm_eval_index.entries(names)
    if lacking := [name for name in names if name not in entries]:
        raise InputError(f"lm-eval cannot read its task {', '.join(lacking)}")
    return entries


def _members(task: Any) -> list[Any]:
    """Return the tasks of a group, or the task itself."""
    return list(task.get_all_tasks()) if hasattr(task, "get_all_tasks") else [task]


def generates(task: Any) -> bool:
    """Return whether a task, or one of a group, has answers generated."""
    return any(each.OUTPUT_TYPE == "generate_until" for each in _members(task))
