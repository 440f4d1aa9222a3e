"""What the command line sets in a study: ``--set evaluate.limit=50``. Knows the schema's keys.

A setting goes into the document before it is validated, so it counts exactly as if it stood in the
study file, in the checks and in the key of a record.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ablations.engines.options import MEMORY_OPTIONS
from ablations.machine.fingerprint import fingerprint_of
from ablations.study.schema import Study
from layerswap_method.errors import InputError, nearest
from layerswap_method.recipe.problems import Place, block_of, type_at
from layerswap_method.recipe.strict_yaml import parse_yaml

_LONGEST = 40
"""Characters of a setting in the name of a folder; longer ones are hashed."""

_SAME_SCORES = (
    *("data_dir", "allow_code_execution", "code_isolation", "report", "question", "source"),
    *MEMORY_OPTIONS,
)
"""Keys that leave the score of a task as it is, or whose change of it stands in the record."""


def parse_setting(text: str) -> tuple[str, Any]:
    """Return key and value of ``KEY=VALUE``; the value is read as YAML.

    Raises:
        InputError: where there is no key or no value.
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not key or not sign or not value:
        raise InputError(f"--set {text}: write KEY=VALUE, such as evaluate.limit=50")
    return key, parse_yaml(value, f"--set {text}")


def with_settings(document: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's document with every setting in its place.

    Args:
        document: the content of the study file.
        settings: key, such as ``evaluate.limit`` -> value.

    Raises:
        InputError: for every key that the schema does not have, with the nearest valid name.
    """
    changed, problems = copy.deepcopy(document), list[str]()
    for key, value in settings.items():
        problem = _set(changed, key, value)
        if problem is not None:
            problems.append(f"--set {key}: {problem}")
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError.from_problems("--set", problems)
    return changed


def is_set(settings: Collection[str], key: str) -> bool:
    """Return whether one of the settings is about `key` or the block that holds it."""
    return any(key == each or key.startswith(f"{each}.") for each in settings)


def folder_words(settings: Mapping[str, Any]) -> list[str]:
    """Return a word a setting for the name of a run folder, such as ``limit-50``.

    So a quick run with a small limit does not take the place of the whole one. Settings that
    change no score, such as how much memory an engine may use, add no word.
    """
    words = []
    for key, value in settings.items():
        parts = key.split(".")
        if parts[0] in _SAME_SCORES or parts[-1] in _SAME_SCORES or key == "name":
            continue
        text = re.sub(r"[^A-Za-z0-9._]+", "-", f"{parts[-1]}-{value}").strip("-")
        hashed = f"{parts[-1]}-{fingerprint_of(value=value)[:8]}"
        words.append((text if len(text) <= _LONGEST else hashed).replace("_", "-"))
    return words


def _set(document: dict[str, Any], key: str, value: Any) -> str | None:
    """Set one value in place; return why it cannot be."""
    place: Place = ()
    holder: Any = document
    rest = key.split(".")
    while True:
        block = block_of(type_at(Study, place))
        if block is not None and rest[0] not in block.model_fields:
            return _unknown(place, rest, block)
        part = _next_part(holder, rest)
        rest = rest[part.count(".") + 1 :]
        name: Any = part
        if isinstance(holder, list):
            if not part.isdigit() or int(part) >= len(holder):
                key = _written(place)
                return (
                    f"{key} is a list of {len(holder)}; write {key}.NUMBER, from 0, for one of "
                    f"them, or {key}=[...] for all of it"
                )
            name = int(part)
        if not rest:
            holder[name] = value
            return None
        place = (*place, name)
        below = holder[name] if isinstance(holder, list) else holder.get(name)
        if below is None:
            below = holder[name] = {}
        if not isinstance(below, dict | list):
            return f"{_written(place)} is {below!r}, which has no keys"
        holder = below


def _next_part(holder: Any, rest: list[str]) -> str:
    """Return the longest beginning of `rest` that is a key; names in `vary` may have dots."""
    joined = (".".join(rest[:end]) for end in range(len(rest), 0, -1))
    return next((each for each in joined if isinstance(holder, dict) and each in holder), rest[0])


def _unknown(place: Place, rest: list[str], block: type[BaseModel]) -> str:
    written = ".".join([*map(str, place), *rest])
    known = list(_keys(Study))
    same = [each for each in known if each.split(".")[-1] == rest[-1]]
    hint = f"; did you mean {same[0]!r}?" if same else nearest(written, known)
    listed = ", ".join(block.model_fields)
    return f"{_written(place)} has no key {rest[0]!r}{hint}; its keys are {listed}"


def _keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield every key of a model and of the blocks in it, with dots between them."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        below = block_of(field.annotation)
        if below is not None:
            yield from _keys(below, f"{above}{name}.")


def _written(place: Place) -> str:
    return ".".join(map(str, place)) or "the study"
