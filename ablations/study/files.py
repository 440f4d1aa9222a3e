"""Reads study files. Knows YAML and what the schema says of it; opens no expert.

A file with a fault is read as far as it goes, so that what is wrong with the rest of it can be
reported along with the fault.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ablations.study.overrides import with_settings
from ablations.study.schema import Study
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.parameters import Words, problems
from layerswap_method.recipe.references import is_there
from layerswap_method.recipe.strict_yaml import read_yaml

STUDIES = Path(__file__).parent.parent / "studies"
"""The shipped studies."""

_GRIDS = {
    "vary": "vary is a grid (name: [value, ...]) or a list of settings (- {name: value, ...}); "
    "values are numbers, texts or true/false"
}


@dataclass(frozen=True)
class StudyFile:
    """A study file as far as it could be read."""

    path: Path
    """The file."""

    study: Study | None
    """The study without its faulty parts; None where too little is left."""

    problems: tuple[str, ...]
    """What is wrong so far; none of it may be passed over before anything is run."""

    settings: tuple[str, ...] = ()
    """Keys that the command line has set; they count before the experts file's."""


def find_study(text: str) -> Path:
    """Return the study file that `text` names: a path, or a shipped study such as ``layer_count``.

    Raises:
        InputError: when there is none.
    """
    return find_shipped(text, STUDIES, "study")


def find_shipped(text: str, folder: Path, what: str) -> Path:
    """Return the file that `text` names: a path, or the name of a shipped file.

    Args:
        text: as the user writes it.
        folder: where the shipped files are.
        what: ``study`` or ``experts``: what such a file holds.

    Raises:
        InputError: when there is none; with the shipped names and the nearest of them.
    """
    path = Path(text)
    shipped = {file.stem: file for file in sorted(folder.glob("*.yml"))}
    with contextlib.suppress(OSError):  # a name too long for a file
        if path.is_file():
            return path
        if path.is_dir() and text not in shipped:
            raise InputError(f"{path}: is a folder; name the {what} file in it")
    if text in shipped:
        return shipped[text]
    raise InputError(
        f"{text}: no such {what} file, and none of that name is shipped"
        f"{nearest(path.stem, shipped)}; shipped are {', '.join(shipped)}"
    )


def read_study(path: Path, settings: Mapping[str, Any] | None = None) -> StudyFile:
    """Return the study in the file `path`, with every problem of its form.

    Args:
        path: the file.
        settings: what the command line sets in it; see `ablations.study.overrides`.

    Raises:
        InputError: when the file cannot be read as YAML at all, or for an unknown key in
            `settings`.
    """
    settings = settings or {}
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; a study has name:, question:, experts: ...")
    problems: tuple[str, ...] = ()
    if "recipe" in settings:
        document["recipe"] = settings["recipe"]
    if isinstance(recipe := document.get("recipe"), str):
        try:
            document["recipe"] = _read_recipe(path.parent / recipe)
        except InputError as error:
            problems = (f"recipe: {error.message}",)
            document["recipe"] = {}
    others = {key: value for key, value in settings.items() if key != "recipe"}
    document = with_settings(document, others)
    try:
        study: Study | None = Study.model_validate(document)
    except ValidationError as error:
        found = form_problems(Study, document, error, "the study")
        set_here = tuple(f"{key} " for key in settings)
        problems += tuple(f"--set {p}" if p.startswith(set_here) else p for p in found)
        study = _salvaged(document, error)
    # Without its recipe there is too little left: what is varied would be asked about in vain.
    is_whole = not any(problem.startswith("recipe") for problem in problems)
    return StudyFile(path, study if is_whole else None, problems, tuple(settings))


def _read_recipe(path: Path) -> dict[str, Any]:
    """Return the recipe that a study names by its path.

    Raises:
        InputError: where there is none.
    """
    if not is_there(path):
        raise InputError(
            f"{path}: no such file; write a path from the folder of the study file, or the recipe "
            "itself (merge_method:, models: ...)"
        )
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; a recipe has merge_method:, models: ...")
    return document


def _salvaged(document: dict[str, Any], error: ValidationError) -> Study | None:
    """Return the study without the parts that `error` is about, if that is still a study."""
    rest = copy.deepcopy(document)
    for item in error.errors():
        holder: Any = rest
        *above, last = item["loc"] if item["type"] == "extra_forbidden" else item["loc"][:1]
        for part in above:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(last, None)
    try:
        return Study.model_validate(rest)
    except ValidationError:
        return None


def form_problems(
    model: type[BaseModel], document: Any, error: ValidationError, whole: str
) -> tuple[str, ...]:
    """Return the errors of pydantic as text, each place once, without those of what holds another.

    Args:
        model: what was validated.
        document: the content of the file.
        error: what pydantic raised.
        whole: what `model` stands for, where an error is about all of it.
    """
    return tuple(problems(model, document, error, Words(whole, grids=_GRIDS)))
