"""Problems of a document that a pydantic model refuses, as text: where, what, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from layerswap_method.errors import InputError, nearest

Validated = TypeVar("Validated", bound=BaseModel)

Location = tuple[Any, ...]
"""Keys and indices from the top of a document down."""


def validated(model: type[Validated], document: Any, where: str) -> Validated:
    """Return a document as a pydantic model, or raise an `InputError` with all that is wrong."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError.from_problems(where, validation_texts(model, document, error)) from error


def validation_texts(model: type[BaseModel], document: Any, error: ValidationError) -> list[str]:
    """Return pydantic's complaints about a document that `model` describes, one text per place."""
    texts: dict[Location, str] = {}
    for item in error.errors(include_url=False):
        place, value, missing_key = _locate(document, item["loc"])
        kind = item["type"]
        if kind == "missing":
            place, text = (*place, *missing_key), " is missing"
        elif whole := _list_without_quotes(document, place):
            place, text = place[:-1], f": write the list in quotes: {whole}"
        elif kind == "extra_forbidden":
            place = (*place, *missing_key)
            text = f": unknown key{_hint(model, document, place)}"
        elif kind == "union_tag_not_found":
            place, text = (*place, item["ctx"]["discriminator"].strip("'")), " is missing"
        elif kind == "union_tag_invalid":
            place = (*place, item["ctx"]["discriminator"].strip("'"))
            text = f": {_tag_reason(item['ctx'])}"
        elif missing_key == ("[key]",):
            text = f": the key {item['input']!r} is not text; write it in quotes"
        elif kind == "value_error":
            text = f": {item['ctx']['error']}"
        else:
            text = " is empty" if kind == "too_short" else f": {_reason(item, value)}"
        # Every member of a union says why it is not meant; the first one is enough.
        texts.setdefault(place, f"{show_location(place)}{text}" if place else text.lstrip(": "))
    outer_places = {place[:end] for place in texts for end in range(1, len(place))}
    return list(dict.fromkeys(text for place, text in texts.items() if place not in outer_places))


def _list_without_quotes(document: Any, place: Location) -> str:
    """Return the key and list that ``{layers: 0-4,7}`` means, where YAML has a key 7; else ""."""
    block = document
    for part in place[:-1]:
        block = block[part]
    if not place or not isinstance(block, Mapping) or block[place[-1]] is not None:
        return ""
    keys = list(block)
    start = end = keys.index(place[-1])
    while start and block[keys[start]] is None:
        start -= 1
    while end + 1 < len(keys) and block[keys[end + 1]] is None:
        end += 1
    parts = [block[keys[start]], *keys[start + 1 : end + 1]]
    is_list = all(re.fullmatch(r"\d+(-\d+)?", str(part)) for part in parts)
    return f'{keys[start]}: "{",".join(map(str, parts))}"' if is_list else ""


def _reason(item: Any, value: Any) -> str:
    reason = item["msg"].replace("Input should be", "must be").removesuffix(" after validation")
    for form, words in _FORMS.items():
        reason = re.sub(form, words, reason)
    if value is None:
        return f"{reason} and is empty; write a value, or drop the line"
    choices = item.get("ctx", {}).get("expected", "").replace("'", "").replace(" or ", ", ")
    hint = nearest(str(value), choices.split(", ")) if item["type"] == "literal_error" else ""
    return f"{reason}, not {_short(value)}{hint}{_form_hint(item['type'], value)}"


def _tag_reason(context: Mapping[str, Any]) -> str:
    """Return which kinds of a block there are, for one that names another."""
    kinds = context["expected_tags"].replace("'", "")
    hint = nearest(context["tag"], kinds.split(", "))
    return f"must be one of {kinds}, not {_short(context['tag'])}{hint}"


_FORMS = {
    r"a valid (dictionary|mapping).*": "a block of keys and values",
    r"a valid (tuple|list)": "a list",
    r"a valid string": "text",
    r"a valid integer.*": "a whole number",
    r"a valid number.*": "a number",
    r"a valid boolean.*": "true or false",
    r"greater than or equal to (\S+)": r"\1 or more",
    r"less than or equal to (\S+)": r"\1 or less",
}
"""Pydantic's words for the form of a value -> words of people."""


def show_location(location: Location) -> str:
    """Return a place in a document as text, such as ``models[0].parameters.role``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"


def _locate(document: Any, loc: Location) -> tuple[Location, Any, Location]:
    """Return (place in the document, value there, the last part of `loc` if it is not there)."""
    place: Location = ()
    value = document
    for part in loc:
        is_key = isinstance(value, Mapping) and part in value
        is_index = isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        if is_key or is_index:  # else it names one of the types of a union
            place, value = (*place, part), value[part]
    is_there = bool(place) and place[-1] == loc[-1]
    return place, value, () if is_there else tuple(loc[-1:])


_ONE_LETTER = 0.85
"""Likeness of two keys that differ in a letter or so."""


def _hint(model: type[BaseModel], document: Any, location: Location) -> str:
    """Return a key of the same block, the block of that very key, or the valid keys.

    One more or less letter, such as ``task`` for ``tasks``, is more likely than another block.
    """
    key = str(location[-1])
    block = _block_at(model, document, location[:-1])
    fields = list(block.model_fields) if block is not None else []
    if hint := nearest(key, fields, _ONE_LETTER):
        return hint
    blocks = sorted({place for name, place in _all_fields(model) if name == key and place})
    if blocks:
        return f"; it belongs under {' or '.join(blocks)}"
    if hint := nearest(key, fields):
        return hint
    return f"; valid keys: {', '.join(fields)}" if fields else "; nothing is read here"


def _block_at(model: type[BaseModel], document: Any, location: Location) -> type[BaseModel] | None:
    annotation: Any = model
    value = document
    for part in location:
        block = _block_of(annotation, value)
        if block is not None and part in block.model_fields:
            annotation = block.model_fields[part].annotation
        else:
            annotation = next(iter(_items(annotation)), None)
        value = value[part]
    return _block_of(annotation, value)


def _block_of(annotation: Any, value: Any) -> type[BaseModel] | None:
    """Return the model among the members of a type: the one of the `kind` of `value`, or any."""
    blocks = [
        member
        for member in _members(annotation)
        if isinstance(member, type) and issubclass(member, BaseModel)
    ]
    kind = value.get("kind") if isinstance(value, Mapping) else None
    for block in blocks:
        field = block.model_fields.get("kind")
        if field is not None and kind in get_args(field.annotation):
            return block
    return next(iter(blocks), None)


def _all_fields(
    model: type[BaseModel], place: str = "", depth: int = 4
) -> Iterator[tuple[str, str]]:
    """Yield (name, block that has it) of every field of a model and of the models in it."""
    for name, field in model.model_fields.items():
        yield name, place
        is_list = any(get_origin(member) in (list, tuple) for member in _members(field.annotation))
        below = f"{place}.{name}" if place else name
        types = [*_members(field.annotation), *_items(field.annotation)]
        for member in types if depth else ():
            if isinstance(member, type) and issubclass(member, BaseModel):
                yield from _all_fields(member, f"{below}[]" if is_list else below, depth - 1)


def _items(annotation: Any) -> Iterator[Any]:
    """Yield the types of the items of a list, or of the values of a mapping."""
    for member in _members(annotation):
        origin = get_origin(member)
        if isinstance(origin, type) and get_args(member):
            yield from _members(get_args(member)[1 if issubclass(origin, Mapping) else 0])


def _members(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin is not Literal:
        yield annotation


def _form_hint(kind: str, value: Any) -> str:
    """Return how to write a list, a block or a text in place of another of these, or a number."""
    if kind in ("tuple_type", "list_type") and isinstance(value, Mapping):
        return "; a list is in brackets, or has a dash before each entry"
    if kind in ("dict_type", "mapping_type", "model_type", "model_attributes_type"):
        if isinstance(value, list):
            return "; write key: value, without dashes or brackets"
        return "; write key: value"
    if kind == "string_type" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return f"; write {value[0]}" if len(value) == 1 else "; write one of them"
    if kind == "string_type" and isinstance(value, Mapping):
        return "; write one text, without keys"
    return _number_hint(kind, value)


def _number_hint(kind: str, value: Any) -> str:
    """Return how to write numbers as text, or one that YAML took for text, such as 1e-6."""
    if kind == "string_type" and isinstance(value, list) and {*map(type, value)} == {int}:
        return f'; write "{",".join(map(str, value))}"'
    if kind in ("string_type", "string_sub_type") and isinstance(value, int | float):
        return f'; write it in quotes: "{value}"'
    if kind not in ("int_type", "float_type") or not isinstance(value, str):
        return ""
    try:
        number = repr(float(value))
    except ValueError:
        return ""
    number = number if "." in number or "n" in number else number.replace("e", ".0e")
    return f" (YAML reads 1e-6 and quoted numbers as text: write {number.removesuffix('.0')})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
