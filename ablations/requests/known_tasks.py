"""The tasks that a request can name: those of its folders, and lm-eval's own.

Files are read without lm-eval, once (`ablations.tasks.task_yaml`); its index of its own tasks is
read only for a name that the folders do not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from ablations.requests.lm_eval_index import lm_eval_folder, lm_eval_index
from ablations.sandbox import Isolation
from ablations.tasks.mbpp import run_answers
from ablations.tasks.task_yaml import (
    FunctionText,
    TaskFile,
    paths_below,
    read_task_file,
    task_file_paths,
    with_placed_data,
)

_FUNCTION = "!function "

_TASK_KEYS = {"task", "group", "tag", "include"}
"""One of them makes a YAML file a task's, which counts only for the tasks that include it."""


class KnownTasks:
    """The tasks, groups and tags of some folders by name; of several the first folder's."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Read the task files below `folders`."""
        from lm_eval.tasks._index import TaskIndex

        self._entries: dict[str, Any] = {}
        self._task_files: dict[str, TaskFile] = {}
        self.names: dict[Path, tuple[str, ...]] = {}
        """Folder -> names of its tasks, groups and tags."""
        self.problems: dict[Path, str] = {}
        """File -> why it cannot be read."""
        self.paths: set[Path] = set()
        """The files of tasks, links followed, with those that they include."""
        for folder in folders:
            index: dict[str, Any] = {}
            for path in task_file_paths(folder):
                task_file = read_task_file(path)
                if len(task_file.files) > 1 or _TASK_KEYS & task_file.content.keys():
                    self.paths.update(file.resolve() for file in task_file.files)
                if task_file.problem:
                    self.problems[path] = task_file.problem
                else:
                    _add(TaskIndex, task_file, index)
            self.names[folder] = tuple(index)
            self._entries = {**index, **self._entries}

    def entry(self, name: str) -> Any | None:
        """Return lm-eval's entry of a task, group or tag; None for an unknown name."""
        return self._entries.get(name) or _lm_eval_entries().get(name)

    def file(self, name: str) -> TaskFile:
        """Return the file of a task or a group; an empty one where there is none."""
        if name not in self._task_files:
            entry = self.entry(name)
            path = None if entry is None else entry.yaml_path
            empty = TaskFile([Path()], {})
            self._task_files[name] = empty if path is None else read_task_file(path)
        return self._task_files[name]

    def members(self, name: str) -> list[str]:
        """Return the tasks of a tag, and what the list of a group names, with tags as their tasks.

        Members of a group that have settings are left out; of a task there are none.
        """
        entry = self.entry(name)
        if entry is not None and entry.kind.name == "TAG":
            return sorted(entry.tags)
        content = self.file(name).content
        members = content.get("task") or () if "group" in content else ()
        names: list[str] = []
        for member in members if isinstance(members, list) else [members]:
            if isinstance(member, str):
                inner = self.entry(member)
                is_tag = inner is not None and inner.kind.name == "TAG"
                names += self.members(member) if is_tag else [member]
        return names


def known_tasks(folders: Sequence[Path]) -> KnownTasks:
    """Return the tasks of folders, which are read again only when a file has changed."""
    files = (path for folder in folders for path in paths_below(folder))
    stats = ((path, path.stat()) for path in files if path.is_file())
    states = frozenset((path, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats)
    return _known_tasks(tuple(folders), states)


@lru_cache(8)
def _known_tasks(
    folders: Sequence[Path], states: frozenset[tuple[Path, int, int, int]]
) -> KnownTasks:
    return KnownTasks(folders)


def make_task(
    name: str, file: TaskFile, metadata: Mapping[str, Any], isolation: Isolation | None
) -> Any:
    """Return lm-eval's object of a task, with its data.

    Args:
        name: of the task.
        file: what was read of it.
        metadata: what the function that loads its data gets.
        isolation: of the programs that its filter runs, if it is `run_answers`.
    """
    from lm_eval.tasks._factory import TaskFactory
    from lm_eval.tasks._index import Entry, Kind

    path = file.files[0]

    class Factory(TaskFactory):  # type: ignore[misc]
        """lm-eval's, which names the file in whose place it gets the content."""

        def _load_full_config(self, entry: Any, overrides: Any = None) -> dict[str, Any]:
            config = dict(super()._load_full_config(entry, overrides))
            config["metadata"]["config_source"] = str(path)
            return config

    config = with_placed_data(with_functions(file.content), path.parent)
    for part in config.get("filter_list") or ():
        for step in part.get("filter") or ():
            if step.get("filter_fn") is run_answers and isolation is not None:
                step["filter_fn"] = partial(run_answers, isolation=isolation)
    return Factory(meta=dict(metadata)).build(Entry(name, Kind.TASK, None, config), registry={})


def with_functions(value: Any) -> Any:
    """Return what a task file says with its functions in the place of their names."""
    from lm_eval.tasks._yaml_loader import _import_func_in_yml

    if isinstance(value, FunctionText) and value.startswith(_FUNCTION):
        return _import_func_in_yml(value.removeprefix(_FUNCTION), value.folder)
    if isinstance(value, dict):
        return {key: with_functions(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_functions(part) for part in value]
    return value


def _add(index_type: Any, task_file: TaskFile, index: dict[str, Any]) -> None:
    """Add a task or group to an index of lm-eval's, which skips files that are neither."""
    try:
        index_type.process_cfg(task_file.content, task_file.files[0], index)
    except (ValueError, TypeError, KeyError):
        return


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
