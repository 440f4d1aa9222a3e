"""What the command line sets in a study: ``--set evaluate.limit=50``.

A setting goes into the document before it is validated, so it counts exactly as if it stood in the
study file, in the checks and in the key of a record.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from typing import Any

from ablations.engines.options import MEMORY_OPTIONS
from ablations.machine.fingerprint import fingerprint_of
from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import parse_yaml

_LONGEST = 40
"""Characters of a setting in the name of a folder; longer ones are hashed."""

_SAME_SCORES = (
    *("data_dir", "report", "question", "source"),
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
    """Return a study's document with every setting in its place; the schema checks it afterwards.

    Args:
        document: the content of the study file.
        settings: key, such as ``evaluate.limit`` -> value.

    Raises:
        InputError: for a key below a value that has no keys, or past the end of a list.
    """
    changed = copy.deepcopy(document)
    for key, value in settings.items():
        holder, rest = changed, key
        while rest:
            name, rest = _first_name(holder, rest)
            if isinstance(holder, list) and not (name.isdigit() and int(name) < len(holder)):
                raise InputError(f"--set {key}: no {name!r} in a list of {len(holder)}, from 0")
            if not isinstance(holder, dict | list):
                raise InputError(f"--set {key}: {holder!r} has no keys")
            place: Any = int(name) if isinstance(holder, list) else name
            if not rest:
                holder[place] = value
            elif isinstance(holder, dict) and holder.get(place) is None:
                holder[place] = {}
            holder = holder[place]
    return changed


def _first_name(holder: Any, key: str) -> tuple[str, str]:
    """Return the longest beginning of `key` that is there, and the rest: a name may have dots."""
    parts = key.split(".")
    splits = [(".".join(parts[:n]), ".".join(parts[n:])) for n in range(len(parts), 0, -1)]
    there = (each for each in splits if isinstance(holder, dict) and each[0] in holder)
    return next(there, splits[-1])


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
