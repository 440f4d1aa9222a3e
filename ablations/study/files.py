"""Reads study files. Knows YAML and what the schema says of it; opens no expert.

A file with a fault is read as far as it goes, so that what is wrong with the rest of it can be
reported along with the fault.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ablations.study.schema import Study
from layerswap_method.errors import InputError, nearest

STUDIES = Path(__file__).parent.parent / "studies"
"""The shipped studies."""


@dataclass(frozen=True)
class StudyFile:
    """A study file as far as it could be read."""

    path: Path
    """The file."""

    study: Study | None
    """The study without its faulty parts; None where too little is left."""

    problems: tuple[str, ...]
    """What is wrong so far; none of it may be passed over before anything is run."""


def find_study(text: str) -> Path:
    """Return the study file that `text` names: a path, or a shipped study such as ``layer_count``.

    Raises:
        InputError: when there is none.
    """
    path = Path(text)
    if path.is_file():
        return path
    shipped = STUDIES / f"{text}.yml"
    if shipped.is_file():
        return shipped
    known = sorted(each.stem for each in STUDIES.glob("*.yml"))
    raise InputError(
        f"{text}: no such study file, and no shipped study of that name"
        f"{nearest(Path(text).stem, known)}; shipped are {', '.join(known)}"
    )


def read_study(path: Path) -> StudyFile:
    """Return the study in the file `path`, with every problem of its form.

    Raises:
        InputError: when the file cannot be read as YAML at all.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; a study has name:, question:, experts: ...")
    try:
        return StudyFile(path, Study.model_validate(document), ())
    except ValidationError as error:
        problems = tuple(dict.fromkeys(_problem(item) for item in error.errors()))
        return StudyFile(path, _salvaged(document, error), problems)


def load_study(path: Path) -> Study:
    """Return the study in the file `path`.

    Raises:
        InputError: listing every problem of its form.
    """
    found = read_study(path)
    if found.problems or found.study is None:
        raise InputError.from_problems(str(path), found.problems)
    return found.study


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


def _problem(item: Any) -> str:
    place = [str(part) for part in item["loc"] if not _is_branch(str(part))]
    where = ".".join(place)
    match item["type"]:
        case "extra_forbidden":
            known = _field_names(Study, place[:-1])
            holder = ".".join(place[:-1]) or "the study"
            return f"{holder} has the unknown key {place[-1]!r}{nearest(place[-1], known)}"
        case "missing":
            return f"{where} is missing"
        case "literal_error":
            options = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            hint = nearest(str(item["input"]), options)
            return f"{where} is {item['input']!r}; it must be one of {', '.join(options)}{hint}"
        case "string_pattern_mismatch":
            return f"{where} is {item['input']!r}; write lower-case letters, digits, _ and -"
        case "too_short":
            return f"{where} is empty"
        case _ if place and place[0] == "vary":
            return (
                f"{where or 'vary'} does not fit: vary is a grid (name: [value, ...]) or a list of "
                "settings (- {name: value, ...}); values are numbers, texts or true/false"
            )
        case _:
            return f"{where} is {item['input']!r}: {item['msg']}"


def _is_branch(part: str) -> bool:
    """Return whether pydantic put `part` into a location to name the branch of a union."""
    return "[" in part or part in ("bool", "int", "float", "str")


def _field_names(model: type[BaseModel], place: Sequence[str]) -> tuple[str, ...]:
    for part in place:
        field = model.model_fields.get(part)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return ()
        model = inner[0]
    return tuple(model.model_fields)
