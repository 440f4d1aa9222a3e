"""Whether mergekit's own methods have the parameters that a recipe writes. mergekit ignores others.

Knows mergekit's registry and where a recipe may have ``parameters:``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from layerswap_method.errors import InputError, nearest


def check_parameters(document: Mapping[str, Any]) -> None:
    """Check the names of a recipe's parameters, at the top and under every model.

    Raises:
        InputError: with every unknown name, its place and the nearest valid name.
    """
    from mergekit.merge_methods.registry import get

    method = str(document["merge_method"])
    known = {parameter.name for parameter in get(method).spec.parameters}
    found = [
        f"{where}unknown parameter {name!r} of {method}, which mergekit ignores"
        f"{nearest(name, known) if known else '; it has no parameters'}"
        for where, names in _blocks(document)
        for name in names
        if name not in known
    ]
    if found:
        raise InputError.from_problems(f"{method} recipe", found)


def _blocks(value: Any, where: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield (place, names) of every block of parameters in a recipe."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "parameters" and isinstance(item, Mapping):
                yield (f"{where}: " if where else ""), [str(name) for name in item]
            elif key != "tokenizer":
                yield from _blocks(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _blocks(item, f"{where}[{i}]")
