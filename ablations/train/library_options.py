"""Options of transformers and peft that a training file gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from layerswap_method.errors import InputError, nearest


def check_options(
    file: str, block: str, options: Mapping[str, Any], kind: Any, foreign: Mapping[str, str]
) -> dict[str, Any]:
    """Return `options` of the dataclass `kind` of a library, with numbers as it declares them.

    They stand below `block` in the training file `file`; `foreign` names may not be given.

    Raises:
        InputError: for names that it does not have, with the nearest one, or no numbers.
    """
    types = get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind) if field.init} - set(foreign)
    checked, problems = dict(options), []
    for name, value in options.items():
        if name in foreign:
            problems.append(f"{block}.{name}: {foreign[name]}")
        elif name not in names:
            problems.append(
                f"{block}: {kind.__name__} has no option {name!r}{nearest(name, names)}"
            )
        elif types[name] in (int, float, bool):
            try:
                checked[name] = TypeAdapter(types[name]).validate_python(value)
            except ValidationError:
                words = {int: "a whole number", float: "a number", bool: "true or false"}
                problems.append(f"{block}.{name} is {value!r}; write {words[types[name]]}")
    InputError.raise_any(file, problems)
    return checked
