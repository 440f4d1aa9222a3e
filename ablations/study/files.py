"""Read study files: every fault of form is reported at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ablations.study.documents import with_references
from ablations.study.overrides import with_settings
from ablations.study.recipe_experts import with_recipe_experts
from ablations.study.schema import Study
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.problems import problems
from layerswap_method.recipe.references import is_there, named_models, resolve_from
from layerswap_method.recipe.strict_yaml import read_yaml

STUDIES = Path(__file__).parent.parent / "studies"
"""The shipped studies."""

_GRIDS = {
    "vary": "vary is a grid (name: [value, ...]) or a list of settings (- {name: value, ...}); "
    "values are numbers, texts or true/false"
}


@dataclass(frozen=True)
class StudyFile:
    """A study file, or what is wrong with its form."""

    path: Path
    """The file."""

    study: Study | None
    """The study; None where the file has a fault."""

    problems: tuple[str, ...]
    """What is wrong with its form."""

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
    above = (each for each in Path.cwd().parents if is_there(each / path))
    place = next(above, None) if path.suffix in (".yml", ".yaml") else None
    found = f" (it is in {place}: run the command there)" if place is not None else ""
    guess = nearest(path.stem, shipped)
    raise InputError(
        f"{text}: no such {what} file{found}, and no shipped one has that name{guess}"
        f"{'' if guess else '.'} Shipped are {', '.join(shipped)}"
    )


def _another_kind(path: Path, document: Mapping[str, Any]) -> str | None:
    """Return what to do with a file that is a recipe or an experts file; None for others."""
    if "merge_method" in document and not {"recipe", "evaluate"} & set(document):
        return (
            f"{path}: is a mergekit recipe, not a study. Merge it with mergekit-yaml, or name it "
            "in a study (recipe: FILE); layerswap init study writes a study to start from"
        )
    if "experts" in document and not {"name", "question", "recipe", "evaluate"} & set(document):
        return (
            f"{path}: is an experts file, not a study. Give it with a study: layerswap run STUDY "
            f"--experts {path}"
        )
    return None


def read_study(path: Path, settings: Mapping[str, Any] | None = None) -> StudyFile:
    """Return the study in the file `path`, with every problem of its form.

    Args:
        path: the file.
        settings: what the command line sets in it; see `ablations.study.overrides`.

    Raises:
        InputError: when the file cannot be read as YAML at all, or for a place in `settings`
            that cannot be.
    """
    settings = settings or {}
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: is not a study; a study has name:, question:, experts: ...")
    if (kind := _another_kind(path, document)) is not None:
        raise InputError(kind)
    problems: tuple[str, ...] = ()
    if "recipe" in settings:
        document["recipe"] = settings["recipe"]
    if isinstance(recipe := document.get("recipe"), str):
        try:
            document["recipe"] = _read_recipe(recipe, path.parent)
        except InputError as error:
            problems = (f"recipe: {error.message}",)
            document["recipe"] = {}
    others = {key: value for key, value in settings.items() if key != "recipe"}
    document = with_recipe_experts(with_settings(document, others))
    try:
        study = _placed(Study.model_validate(document), own_folder(path))
    except ValidationError as error:
        found = form_problems(Study, document, error, "the study")
        set_here = tuple(f"{key}{end}" for key in settings for end in (":", " "))
        problems += tuple(f"--set {p}" if p.startswith(set_here) else p for p in found)
    return StudyFile(path, None if problems else study, problems, tuple(settings))


def own_folder(file: Path) -> Path | None:
    """Return the folder at which the paths in a file start; see `beside`.

    None for shipped files, whose paths start at the working directory.
    """
    folder = file.resolve().parent
    return None if folder.is_relative_to(STUDIES) else file.parent


def near(path: str | None, folder: Path | None) -> str | None:
    """Return a path of a file in `folder` as the working directory means it; see `beside`."""
    return None if path is None else str(resolve_from(path, folder))


def _placed(study: Study, folder: Path | None) -> Study:
    """Return the study with the folders that its protocol names found beside the file."""
    asked = study.evaluate
    places = {name: near(getattr(asked, name), folder) for name in ("include_path", "data_dir")}
    return study.model_copy(update={"evaluate": asked.model_copy(update=places)})


def _read_recipe(text: str, folder: Path) -> dict[str, Any]:
    """Return the recipe that a study in `folder` names; its models' paths begin there as well.

    Raises:
        InputError: where there is none.
    """
    path = resolve_from(text, folder)
    if not is_there(path):
        raise InputError(
            f"{folder / text}: no such file; write a path from the folder of the study file "
            "(or from the working directory), or the recipe itself (merge_method:, models: ...)"
        )
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: is not a recipe; a recipe has merge_method:, models: ...")
    moved = {
        model: "+".join(_moved(part, path.parent, folder) for part in model.split("+"))
        for model in named_models(document)
    }
    placed: dict[str, Any] = with_references(document, moved)
    return placed


def _moved(part: str, recipe: Path, study: Path) -> str:
    """Return a path written in the folder `recipe` as one written in the folder `study`."""
    if "/" not in part or not is_there(recipe / part) or recipe.resolve() == study.resolve():
        return part
    found = os.path.relpath(recipe / part, study)
    return found if "/" in found else f"./{found}"


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
    return tuple(problems(model, document, error))
