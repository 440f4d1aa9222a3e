"""Task files of lm-eval: the YAML of a task with what it includes, found and read without lm-eval.

`ablations.requests` makes tasks, and a hash of each, of what is read here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from layerswap_method.errors import InputError
from layerswap_method.recipe.references import is_there, map_texts

_MOST_PATHS = 100_000
"""Most files and folders in which task files are looked for."""

LOCAL_DATA = ("data_files", "data_dir")
"""Options of `load_dataset` that name files or folders."""


class FunctionText(str):
    """A tag of a task file as text, such as ``!function NAME``."""

    folder: Path
    """The folder of the file, in which lm-eval looks for the function first."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads ``!function NAME`` as text."""

    folder: Path


def _read_tag(loader: _Loader, tag: str, node: yaml.Node) -> FunctionText:
    text = FunctionText(f"!{tag} {getattr(node, 'value', node)}")
    text.folder = loader.folder
    return text


_Loader.add_multi_constructor("!", _read_tag)


class TaskFile(NamedTuple):
    """A task file with what it includes."""

    files: Sequence[Path]
    """The file, and those that it includes."""

    content: dict[str, Any]
    """The keys of the file, and those of included files that it does not have."""

    problem: str = ""
    """Why the file, or one that it includes, cannot be read."""


def read_task_file(path: Path, above: Sequence[Path] = ()) -> TaskFile:
    """Return a task file with what it includes, as lm-eval reads it: the file's own keys win.

    `above` are the files that include it. The content of a file that cannot be read is empty. A
    file is opened once, and again when it has changed.
    """
    try:
        status = path.stat()
        # The inode and the time of change, too: a restored time of writing hides another file.
        state = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
        own = _read_yaml(path, state)
    # ValueError: no such day; TypeError: a list as a key.
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        return TaskFile([path], {}, " ".join(str(error).split()))
    content, files, problem = {**own}, [path], ""
    included: dict[str, Any] = {}
    names = content.pop("include", [])
    for name in names if isinstance(names, list) else [names]:
        if isinstance(name, str) and (inner := _beside(path, name)) not in (path, *above):
            task_file = read_task_file(inner, (path, *above))
            files += task_file.files
            included |= task_file.content
            problem = problem or task_file.problem
    return TaskFile(files, {**included, **content}, problem)


@lru_cache(1 << 14)
def _read_yaml(path: Path, state: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the content of a file that is in a `state`."""
    loader = _Loader(path.read_text(encoding="utf-8"))
    loader.folder = path.resolve().parent
    try:
        content = loader.get_single_data()
    finally:
        loader.dispose()
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: is no mapping of keys")
    return content


def _beside(path: Path, name: str) -> Path:
    """Return an included file; of a link the one next to its target, as lm-eval has it."""
    neighbour = path.parent / name
    return neighbour if neighbour.exists() else path.resolve().parent / name


def task_file_paths(folder: Path) -> list[Path]:
    """Return what ends in ``.yaml`` below a folder, sorted and left out as in lm-eval's index."""
    paths = [
        path
        for path in paths_below(folder)
        if path.suffix == ".yaml" and ".ipynb_checkpoints" not in path.parts
    ]
    return sorted(paths, key=Path.as_posix)


def walk_below(folder: Path) -> Iterator[Path]:
    """Yield what `Path.rglob` does, which fails where something vanishes under it, as in /proc."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def paths_below(folder: Path) -> list[Path]:
    """Return all files and folders below a folder of tasks.

    Raises `InputError` for a folder of too many, such as ``/``.
    """
    paths = list(itertools.islice(walk_below(folder), _MOST_PATHS + 1))
    if len(paths) > _MOST_PATHS:
        raise InputError(
            f"{folder}: holds over {_MOST_PATHS:,} files and folders; name the folder that has the "
            "task files"
        )
    return paths


def with_placed_data(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a task's file with the data next to it named by its whole path.

    lm-eval reads relative `data_files` from the working directory. Here a file that is not there,
    but next to the task's YAML in `folder`, is that one.
    """
    source, options = config.get("dataset_path"), config.get("dataset_kwargs")
    # One of datasets' own readers, such as json or csv, not a data set of the hub.
    if not isinstance(source, str) or "/" in source or not isinstance(options, Mapping):
        return dict(config)

    def place(text: str) -> str:
        neighbour = folder / text
        return str(neighbour.absolute()) if not is_there(text) and is_there(neighbour) else text

    return {**config, "dataset_kwargs": with_local_data(options, place)}


def with_local_data(options: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the options of `load_dataset` with the names of files and folders changed."""
    paths = {key: options[key] for key in LOCAL_DATA if key in options}
    return {**options, **map_texts(paths, change)}
