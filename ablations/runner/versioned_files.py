"""One JSON file below a run folder, read and checked against its type and schema version.

Knows no record: what the files hold is in `ablations.runner.records`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from layerswap_method.errors import InputError, LayerSwapError, first_line

SCHEMA_VERSION = 3
"""Of everything below a run folder. In version 1 a record was a cell with all its tasks."""

RUN_FILE = "run.json"
_Model = TypeVar("_Model", bound=BaseModel)


def read_versioned(kind: type[_Model], path: Path) -> _Model | None:
    """Return the content of a file that states its ``schema_version``; None where there is none.

    Raises:
        InputError: where another version of layerswap wrote it.
        LayerSwapError: where it is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text)["schema_version"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, error) from error
    if version != SCHEMA_VERSION:
        raise other_schema(path, version)
    return validated(kind, text, str(path))


def validated(kind: type[_Model], text: str, where: str) -> _Model:
    """Return a JSON text as an object of `kind`.

    Args:
        kind: what it must be.
        text: the JSON text.
        where: file (and line), for the error.

    Raises:
        LayerSwapError: where the text is not such an object.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise damaged(where, error) from error


def is_of_schema_1(path: Path) -> bool:
    """Return whether a file has the results of a run of the first schema, and is not another's."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("schema_version") == 1


def other_schema(path: Path, version: object) -> InputError:
    """Return the error for a file of another version of layerswap."""
    age = "an older" if isinstance(version, int) and version < SCHEMA_VERSION else "a newer"
    return InputError(
        f"{path}: written by {age} layerswap (schema version "
        f"{version}, and this one reads {SCHEMA_VERSION}); it is left as it is: use the version "
        "that wrote it, or run again in another folder (--out)"
    )


def damaged(where: Path | str, why: Exception | str) -> LayerSwapError:
    """Return the error for a file of a run that cannot be used, with what to do."""
    advice = "remove its folder and run the study again: the other records are kept"
    if Path(where).name == RUN_FILE:
        advice = "restore it, or choose another --out"
    reason = why if isinstance(why, str) else first_line(why)
    return LayerSwapError(f"{where} is damaged ({reason}); {advice}")
