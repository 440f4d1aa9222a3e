"""Settings of the command line, ``KEY=VALUE``, laid over the content of a file."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import parse_yaml

SHORT = {
    "limit": "limit",
    "dtype": "options.dtype",
    "max_model_len": "options.max_model_len",
    "data_dir": "data_dir",
    "tasks": "tasks",
    "benchmarks": "benchmarks",
    "include_path": "include_path",
    "metadata": "metadata",
}
"""Option of `run` or `evaluate` -> the key of a study's `evaluate` that it sets."""


def short_settings(options: Mapping[str, Any], block: str = "") -> dict[str, Any]:
    """Return key -> value of the options in `SHORT` that are set.

    `block` stands before the keys, such as ``evaluate.``.
    """
    return {
        block + SHORT[name]: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in options.items()
        if value not in (None, ())
    }


def parse_settings(texts: Iterable[str], short: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return key -> value, read as YAML, after the settings of `short` options.

    Raises `InputError` for a key that is set twice.
    """
    settings = dict(short or {})
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or not value:
            raise InputError(f"--set {text}: write KEY=VALUE, or KEY=null")
        settings = joined_settings(settings, {key: parse_yaml(value, f"--set {text}")})
    return settings


def joined_settings(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and further ones. Raises `InputError` for a key that is set twice."""
    joined = dict(settings)
    for key, value in more.items():
        for name in joined:
            if f"{name}.".startswith(f"{key}."):
                raise InputError(f"{name} is set twice; leave one of the two out")
        joined[key] = value
    return joined


def with_settings(document: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content with every setting in its place; the schema checks it afterwards.

    Raises `InputError` for a key below a value that has no keys, or past the end of a list.
    """
    changed = copy.deepcopy(document)
    for key, value in settings.items():
        block, remaining_key = changed, key
        while remaining_key:
            # A name that is there may have dots itself, such as experts.task in vary.
            names = [
                name
                for name in (block if isinstance(block, dict) else ())
                if f"{remaining_key}.".startswith(f"{name}.")
            ]
            name: Any = max(names, key=len, default=remaining_key.partition(".")[0])
            remaining_key = remaining_key[len(name) + 1 :]
            if isinstance(block, list) and name.isdigit() and int(name) < len(block):
                name = int(name)
            elif not isinstance(block, dict):
                raise InputError(f"--set {key}: there is no {name!r} in {block!r}")
            if not remaining_key:
                block[name] = value
            elif isinstance(block, dict) and block.get(name) is None:
                block[name] = {}
            block = block[name]
            if remaining_key and not isinstance(block, dict | list):
                raise InputError(f"--set {key}: {block!r} has no keys; set the block above it")
    return changed
