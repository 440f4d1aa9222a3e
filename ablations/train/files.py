"""Reads training configurations: `extends`, `--set`, sources of other files. Opens no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablations.gallery.find import find_recipe
from ablations.train.config import ConfigRows, LocalRows, Source, TrainConfig, source_kind
from layerswap_method.errors import InputError
from layerswap_method.recipe.problems import problems
from layerswap_method.recipe.references import is_there
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml

PRESETS = "experts"
"""Folder of the shipped configurations among the recipes."""



def read_config(text: str, settings: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that `text` names: a path, or a shipped one such as ``math_1``.

    Sources of other configurations are taken in, and paths of local rows are made absolute.

    Args:
        text: as the user writes it.
        settings: ``NAME=VALUE`` in place of what the file says; ``regime.rank=8`` goes deeper.

    Raises:
        InputError: with every problem of the file.
    """
    path = _find(text)
    document = _extended(path, ())
    for setting in settings:
        _set(document, setting)
    return _resolved(_validated(document, str(path)), (path.resolve(),))


def _find(text: str) -> Path:
    path = Path(text)
    if is_there(path) and path.is_file():
        return path
    if path.suffix or path.is_dir():
        raise InputError(f"{path}: no such file" if path.suffix else f"{path}: is a folder")
    return find_recipe(f"{PRESETS}/{text}.yml")


def _extended(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return the document at `path`, laid over the one that it extends."""
    if path.resolve() in above:
        raise InputError(f"{path}: extends itself")
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; write base:, data:, samples: ...")
    parent = document.pop("extends", None)
    if isinstance(sources := document.get("data"), list):
        document["data"] = [_placed(source, path.parent) for source in sources]
    if parent is None:
        return document
    if not isinstance(parent, str):
        raise InputError(f"{path}: extends is {parent!r}; write the path of one configuration")
    file = path.parent / parent
    if not is_there(file):
        raise InputError(f"{path}: extends {parent}: there is no {file}")
    return {**_extended(file, (*above, path.resolve())), **document}


def _placed(source: Any, folder: Path) -> Any:
    """Return a source whose file is found from the folder of its configuration."""
    if not isinstance(source, Mapping):
        return source
    placed = dict(source)
    for key in ("path", "config"):
        if isinstance(text := source.get(key), str) and is_there(folder / text):
            placed[key] = str((folder / text).resolve())
    return placed


def _set(document: dict[str, Any], setting: str) -> None:
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--set {setting}: write NAME=VALUE, such as samples=100")
    *above, last = name.strip().split(".")
    holder = document
    for part in above:
        below = holder.get(part)
        holder[part] = dict(below) if isinstance(below, Mapping) else {}
        holder = holder[part]
    holder[last] = parse_yaml(text, f"--set {name}")


def _validated(document: dict[str, Any], where: str) -> TrainConfig:
    found = []
    sources = document.get("data")
    for number, source in enumerate(sources if isinstance(sources, list) else ()):
        if isinstance(source, dict) and "kind" not in source:
            try:
                source["kind"] = source_kind(source)
            except ValueError as error:
                found.append(f"data.{number}: {error}")
    if found:
        raise InputError.from_problems(where, found)
    try:
        return TrainConfig.model_validate(document)
    except ValidationError as error:
        found = problems(TrainConfig, document, error)
        raise InputError.from_problems(where, found) from error


def _resolved(config: TrainConfig, above: tuple[Path, ...]) -> TrainConfig:
    """Return a configuration whose sources are rows, with the shares of other files' sources."""
    sources: list[Source] = []
    for source in config.data:
        if isinstance(source, LocalRows):
            path = Path(source.path)
            if not path.is_file():
                raise InputError(f"{above[-1]}: data: {source.path}: no such file")
            sources.append(source.model_copy(update={"path": str(path.resolve())}))
        elif isinstance(source, ConfigRows):
            sources += _taken_in(source, above)
        else:
            sources.append(source)
    return config.model_copy(update={"data": tuple(sources)})


def _taken_in(source: ConfigRows, above: tuple[Path, ...]) -> list[Source]:
    path = Path(source.config)
    if not path.is_file():
        raise InputError(f"{above[-1]}: data: {source.config}: no such configuration")
    if path.resolve() in above:
        raise InputError(f"{path}: takes its data from itself")
    other = _validated(_extended(path, ()), str(path))
    rows = _resolved(other, (*above, path.resolve())).data
    whole = sum(each.weight for each in rows)
    return [
        each.model_copy(update={"weight": source.weight * each.weight / whole}) for each in rows
    ]
