"""Where the data files of a task of one's own are.

lm-eval reads relative `data_files` from the working directory. Here a file that is not there, but
beside the task's YAML, is that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import nearest
from layerswap_method.recipe.references import is_there

_KEYS = ("data_files", "data_dir")
_PATTERN = frozenset("*?[")


def with_placed_data(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a task's file with the data next to it named by its whole path.

    Args:
        config: the content.
        folder: of the file.
    """
    if not _is_local(config):
        return dict(config)

    def place(text: str) -> str:
        near = folder / text
        return str(near.absolute()) if not is_there(text) and is_there(near) else text

    options = config["dataset_kwargs"]
    placed = {key: _each(options[key], place) for key in _KEYS if key in options}
    return {**config, "dataset_kwargs": {**options, **placed}}


def missing_files(config: Mapping[str, Any], file: Path) -> Iterator[str]:
    """Yield what to do about each data file that is not there.

    Args:
        config: of `with_placed_data`.
        file: the task's.
    """
    if not _is_local(config):
        return
    file, missing = file.resolve(), list[str]()

    def note(text: str) -> str:
        if text and "://" not in text and not _PATTERN & set(text) and not is_there(text):
            missing.append(text)
        return text

    _each(config["dataset_kwargs"].get("data_files"), note)
    for text in dict.fromkeys(missing):
        path = Path(text)
        if path.is_absolute():
            looked, names = "", _names(path.parent)
        else:
            looked = f" (looked in {Path.cwd()} and in {file.parent})"
            names = _names(file.parent / path.parent)
        hint = nearest(path.name, names)
        yield (
            f"its data cannot be read: {text}: no such file{looked}{hint or ';'} "
            f"correct data_files in {file}, or put the data there"
        )


def _is_local(config: Mapping[str, Any]) -> bool:
    """Return whether a task reads files by one of datasets' own readers, such as json or csv."""
    source, options = config.get("dataset_path"), config.get("dataset_kwargs")
    return isinstance(source, str) and "/" not in source and isinstance(options, Mapping)


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with `change` made to every text in its lists and mappings."""
    if isinstance(value, Mapping):
        return {key: _each(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_each(each, change) for each in value]
    return change(value) if isinstance(value, str) else value
