"""Reads training files: `extends`, `--set`, and sources of other files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablations.gallery.find import find_recipe
from ablations.train.config import Source, TrainConfig
from layerswap_method.errors import InputError
from layerswap_method.recipe.problems import problems
from layerswap_method.recipe.references import is_there
from layerswap_method.recipe.strict_yaml import parse_yaml, read_yaml

PRESETS = "experts"
"""Folder of the shipped training files among the recipes."""


def read_config(text: str, settings: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that `text` names: a path, or a shipped one such as ``math_1``.

    Sources of other files are taken in, and paths of local rows are made absolute.

    Args:
        text: as the user writes it.
        settings: ``NAME=VALUE`` in place of what the file says; ``lora.r=8`` goes deeper.

    Raises:
        InputError: with every problem of the file.
    """
    path = _find(text)
    document = _read_extended(path, ())
    for setting in settings:
        _set(document, setting)
    config = _validate(document, path)
    return config.model_copy(update={"data": tuple(_find_sources(config, path, ()))})


def _find(text: str) -> Path:
    path = Path(text)
    if is_there(path) and path.is_file():
        return path
    if path.suffix or path.is_dir():
        raise InputError(f"{path}: no such file" if path.suffix else f"{path}: is a folder")
    return find_recipe(f"{PRESETS}/{text}.yml")


def _read_extended(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return the document at `path`, laid over the one that it extends."""
    if path.resolve() in above:
        raise InputError(f"{path}: extends itself")
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; write base:, data:, samples: ...")
    parent = document.pop("extends", None)
    if isinstance(sources := document.get("data"), list):
        document["data"] = [_place(source, path.parent) for source in sources]
    if parent is None:
        return document
    if not isinstance(parent, str):
        raise InputError(f"{path}: extends is {parent!r}; write the path of one training file")
    file = path.parent / parent
    if not is_there(file):
        raise InputError(f"{path}: extends {parent}: there is no {file}")
    below = _read_extended(file, (*above, path.resolve()))
    for block in ("trainer", "lora"):  # name by name
        if isinstance(below.get(block), Mapping) and isinstance(document.get(block), Mapping):
            document[block] = {**below[block], **document[block]}
    return {**below, **document}


def _place(source: Any, folder: Path) -> Any:
    """Return a source whose file is looked for in the folder of its training file."""
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


def _validate(document: dict[str, Any], path: Path) -> TrainConfig:
    try:
        return TrainConfig.model_validate(document)
    except ValidationError as error:
        listed = problems(TrainConfig, document, error)
        from transformers import TrainingArguments

        of_trainer = {field.name for field in dataclasses.fields(TrainingArguments)}
        for name in of_trainer & set(document) - set(TrainConfig.model_fields):
            listed.append(f"{name} is an option of transformers: write it below trainer:")
        raise InputError.from_problems(str(path), listed) from error


def _find_sources(config: TrainConfig, path: Path, above: tuple[Path, ...]) -> list[Source]:
    """Return the sources of rows, those of other files with their part of that file's weight."""
    above = (*above, path.resolve())
    sources: list[Source] = []
    for source in config.data:
        if source.config is not None:
            file = Path(source.config)
            if not file.is_file():
                raise InputError(f"{path}: data: {file}: no such training file")
            if file.resolve() in above:
                raise InputError(f"{file}: takes its data from itself")
            below = _find_sources(_validate(_read_extended(file, ()), file), file, above)
            whole = sum(part.weight for part in below)
            sources += [
                part.model_copy(update={"weight": source.weight * part.weight / whole})
                for part in below
            ]
        elif source.path is not None:
            if not Path(source.path).is_file():
                raise InputError(f"{path}: data: {source.path}: no such file")
            place = str(Path(source.path).resolve())
            sources.append(source.model_copy(update={"path": place}))
        else:
            sources.append(source)
    return sources
