"""What pydantic finds wrong with a file of a study, in a few words of ours. Opens no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from layerswap_method.errors import nearest

_BLOCK = "write a block of names and values"
_FORMS = {
    "dict_type": _BLOCK,
    "model_type": _BLOCK,
    "tuple_type": "write a list",
    "string_type": "write text (in quotes, if it looks like a number or like yes and no)",
}
"""Type of an error of pydantic -> what to do."""


def form_problems(model: type[BaseModel], error: ValidationError, whole: str) -> tuple[str, ...]:
    """Return the errors of pydantic as text, each place once, without those of what holds another.

    Args:
        model: what was validated.
        error: what pydantic raised.
        whole: what `model` stands for, where an error is about all of it.
    """
    found = [(_place(item["loc"]), item) for item in error.errors()]
    holders = {place[:end] for place, _ in found for end in range(len(place))}
    texts = [_text(model, place, item, whole) for place, item in found if place not in holders]
    return tuple(dict.fromkeys(texts))


def _text(model: type[BaseModel], place: tuple[str, ...], item: Any, whole: str) -> str:
    where = ".".join(place) or whole
    if item["loc"][-1:] == ("[key]",):
        holder = ".".join(place[:-1]) or whole
        return f"{holder}: the name {item['input']!r} is no text; write it in quotes"
    match item["type"]:
        case "extra_forbidden":
            known = _field_names(model, place[:-1])
            holder = ".".join(place[:-1]) or whole
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
                f"{where} does not fit: vary is a grid (name: [value, ...]) or a list of "
                "settings (- {name: value, ...}); values are numbers, texts or true/false"
            )
        case kind if kind in _FORMS:
            found = "empty" if item["input"] is None else repr(item["input"])
            return f"{where} is {found}; {_FORMS[kind]}"
        case _:
            return f"{where} is {item['input']!r}: {item['msg']}"


def _place(loc: Sequence[Any]) -> tuple[str, ...]:
    """Return a location without the parts by which pydantic names the branches of a union."""
    parts = [str(part) for part in loc]
    return tuple(p for p in parts if "[" not in p and p not in ("bool", "int", "float", "str"))


def _field_names(model: type[BaseModel], place: Sequence[str]) -> tuple[str, ...]:
    for part in place:
        field = model.model_fields.get(part)
        if field is None:  # a name in a block, such as that of an expert
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return ()
        model = inner[0]
    return tuple(model.model_fields)
