"""Settings of the command line, ``KEY=VALUE``, laid over what a file says."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from layerswap_method.errors import InputError
from layerswap_method.recipe.strict_yaml import parse_yaml


def parse_settings(texts: Iterable[str], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return `known` and key -> value, read as YAML; raises `InputError` for a key set twice."""
    settings = dict(known or {})
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or not value:
            raise InputError(f"--set {text}: write KEY=VALUE, or KEY=null")
        if twice := next((name for name in settings if f"{name}.".startswith(f"{key}.")), ""):
            raise InputError(f"{twice} is set twice; leave one of the two out")
        settings[key] = parse_yaml(value, f"--set {text}")
    return settings


def with_settings(document: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content with every setting in its place; the schema checks it afterwards.

    Raises `InputError` for a key below a value that has no keys, or past the end of a list.
    """
    changed = copy.deepcopy(document)
    for key, value in settings.items():
        holder, rest = changed, key
        while rest:
            # A name that is there may have dots itself, such as experts.task in vary.
            known = holder if isinstance(holder, dict) else ()
            names = [name for name in known if f"{rest}.".startswith(f"{name}.")]
            name: Any = max(names, key=len, default=rest.partition(".")[0])
            rest = rest[len(name) + 1 :]
            if isinstance(holder, list) and name.isdigit() and int(name) < len(holder):
                name = int(name)
            elif not isinstance(holder, dict):
                raise InputError(f"--set {key}: there is no {name!r} in {holder!r}")
            if not rest:
                holder[name] = value
            elif isinstance(holder, dict) and holder.get(name) is None:
                holder[name] = {}
            holder = holder[name]
            if rest and not isinstance(holder, dict | list):
                raise InputError(f"--set {key}: {holder!r} has no keys; set the block above it")
    return changed
