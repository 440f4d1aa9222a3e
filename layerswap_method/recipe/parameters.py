"""What is wrong with a document in YAML, in words: the one renderer of pydantic's errors.

Knows pydantic models and errors, and what mergekit makes of YAML values; not which method has
which parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from layerswap_method.errors import nearest

Place = tuple[Any, ...]
"""Keys and indices from the top of a document down."""

SCALARS = (bool, int, float, str)
"""What one value of a parameter can be; mergekit interpolates lists and filters by layer."""

_BLOCK = "a block of names and values"
_FORMS = {
    "dict_type": _BLOCK,
    "model_type": _BLOCK,
    "list_type": "a list",
    "tuple_type": "a list",
    "reference": "a model's folder or hub id",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "string_type": "text (in quotes, if it looks like a number or like yes and no)",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}
"""Type of an error -> what to write; braces hold names of pydantic's bounds."""

_NO_TEXT = "the name {!r} is not text; write it in quotes"


@dataclass(frozen=True)
class Words:
    """How one kind of file is spoken of."""

    whole: str
    """What an error is about that has no place."""

    index: str = ".{}"
    """How a place in a list is written."""

    write: str = "write "
    """Stands before what a value has to be."""

    ignored: str = ""
    """Said of unknown keys."""

    lists_keys: bool = False
    """Whether an unknown key is followed by the valid ones."""

    union: str = ""
    """Said of a value that is none of several types; "" goes by the first type that was tried."""

    grids: Mapping[str, str] = field(default_factory=dict)
    """Top-level key -> what is said of everything that is wrong in it."""


RECIPE = Words(
    whole="the recipe",
    index="[{}]",
    write="it must be ",
    ignored=", which mergekit ignores",
    union=", which mergekit cannot read as its value",
)


def problems(
    model: type[BaseModel], document: Any, error: ValidationError | None, words: Words
) -> list[str]:
    """Return what is wrong with a document: each place once, without those of what holds another.

    Args:
        model: what the document is to be read as.
        document: the document.
        error: what pydantic raised; None where it took the document.
        words: how to speak of it.
    """
    unknown = unknown_keys(model, document)
    texts = {at: _unknown(model, document, at, block, words) for at, block in unknown}
    errors = [] if error is None else error.errors(include_url=False)
    found = [(*_find(document, item["loc"], words), item) for item in errors]
    holders = {place[:end] for place, *_ in found for end in range(len(place))}
    for each in found:
        if each[0] not in holders and each[3]["type"] != "extra_forbidden":
            texts.setdefault(each[0], _text(model, document, each, words))
    return list(dict.fromkeys(texts.values()))


def unknown_keys(
    annotation: Any, value: Any, place: Place = ()
) -> Iterator[tuple[Place, type[BaseModel]]]:
    """Yield the place of every key that no field of a model reads, and the model of its block.

    Args:
        annotation: the type of `value`, such as a model.
        value: a document or a part of one; values of a wrong type are passed over.
        place: where `value` is.
    """
    block = block_of(annotation, value) if isinstance(value, Mapping) else None
    items = enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in value.items() if isinstance(value, Mapping) else items:
        if block is not None and key not in block.model_fields:
            yield (*place, key), block
        else:
            yield from unknown_keys(_below(block or annotation, key), item, (*place, key))


def block_of(annotation: Any, value: Any = None) -> type[BaseModel] | None:
    """Return the model among the members of a type: the one of the `kind` of `value`, or any."""
    kinds = [k for k in _members(annotation) if isinstance(k, type) and issubclass(k, BaseModel)]
    meant = value.get("kind") if isinstance(value, Mapping) else None
    named = [k for k in kinds if meant is not None and "kind" in k.model_fields]
    fitting = [k for k in named if meant in get_args(k.model_fields["kind"].annotation)]
    return next(iter(fitting or kinds), None)


def type_at(model: type[BaseModel], place: Place) -> Any:
    """Return the declared type of what stands at `place`; None where the model has no such."""
    annotation: Any = model
    for part in place:
        annotation = _below(annotation, part)
    return annotation


def _below(annotation: Any, part: Any) -> Any:
    """Return the type of one field, or of one item of a list or mapping."""
    for kind in _members(annotation):
        origin = get_origin(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if part in kind.model_fields:
                return kind.model_fields[part].annotation
        elif isinstance(origin, type) and get_args(kind):
            return get_args(kind)[issubclass(origin, Mapping)]
    return None


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    elif get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    else:
        yield annotation


def _find(document: Any, loc: Place, words: Words) -> tuple[Place, Any, Place]:
    """Return (place, value there, what of `loc` is a branch of a union and no place)."""
    place: Place = ()
    value, rest = document, []
    for i, part in enumerate(loc):
        if loc[i + 1 : i + 2] == ("[key]",):
            return (*place, part), value, ("[key]",)
        if (isinstance(value, Mapping) and part in value) or (
            isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)
        ):
            place, value = (*place, part), value[part]
        elif isinstance(value, Mapping) and value.get("kind") == part:
            continue  # which of several blocks it is, and no place
        elif words.union:
            return place, value, loc[i:]
        else:
            rest.append(part)
    return place, value, tuple(rest)


def _written(place: Place, words: Words) -> str:
    text = ""
    for part in place:
        in_list = isinstance(part, int)
        text += words.index.format(part) if in_list else f".{part}" if text else str(part)
    return text or words.whole


def _unknown(
    model: type[BaseModel], document: Any, place: Place, block: type[BaseModel], words: Words
) -> str:
    """Return what is wrong with one unknown key of `block`."""
    *above, key = place
    top, own = (
        tuple(found.model_fields) if (found := block_of(type_at(model, at))) is not None else ()
        for at in (("parameters",), ("models", 0, "parameters"))
    )
    if above[-1:] != ["parameters"]:
        in_place = key in (*top, *own)
        hint = (
            "; it belongs under parameters:" if in_place else nearest(str(key), block.model_fields)
        )
        valid = ", ".join(block.model_fields) if words.lists_keys else ""
        hint += f"{'' if hint.endswith('?') else '.'} Valid keys: {valid}" if valid else ""
        return f"{_written(tuple(above), words)} has the unknown key {key!r}{words.ignored}{hint}"
    if not isinstance(key, str):
        return f"{_written(tuple(above), words)}: {_NO_TEXT.format(key)}"
    if len(above) == 1 and key in own:
        return f"{key} belongs under the parameters: of each model, not at the top"
    where = _of_model(document, place)
    if where and key in top:
        return f"{where}{key} belongs under the recipe's top parameters:"
    advice: Mapping[str, str] = getattr(block, "advice", {})
    none = "" if block.model_fields else "; models take none here"
    unknown = f"unknown parameter {key!r}{nearest(str(key), (*own, *top))}{none}"
    return where + advice.get(str(key), unknown)


def _of_model(document: Any, place: Place) -> str:
    """Return the beginning of a problem of one model's parameters; "" for all others."""
    if place[:1] != ("models",) or "parameters" not in place:
        return ""
    return f"models[{place[1]}] ({document['models'][place[1]].get('model')}): "


def _text(
    model: type[BaseModel], document: Any, found: tuple[Place, Any, Place, Any], words: Words
) -> str:
    place, value, rest, item = found
    where, kind = _written(place, words), item["type"]
    block = block_of(type_at(model, place[:-1]))
    if rest == ("[key]",):
        return f"{_written(place[:-1], words)}: {_NO_TEXT.format(item['input'])}"
    if place and place[0] in words.grids:
        return f"{where} does not fit: {words.grids[place[0]]}"
    if kind == "missing" and len(rest) == 1:
        return f"{_written((*place, *rest), words)} is missing"
    is_whole = (*place, *rest)[-1:] == ("parameters",)  # which need not be written
    if kind == "value_error" and (is_whole or not (rest or value is None)):
        return _of_model(document, place) + str(item["ctx"]["error"])
    form = _FORMS.get("reference" if "Reference" in item["msg"] else kind)
    if value is None:
        is_required = form == _BLOCK and not words.union
        return f"{where} is empty; write {form if is_required else 'a value or drop the line'}"
    if rest and words.union:
        return f"{where} is {_short(value)}{words.union}"
    if "parameters" in place[:-1] and block is not None and place[-1] in block.model_fields:
        where = place[-1]
        if not isinstance(value, SCALARS):
            examples = block.model_fields[where].examples
            return _of_model(document, place) + _list_problem(where, value, examples)
        numbers = {"int_type": "a whole number", "float_type": f"one number{_number_hint(value)}"}
        numbers["string_type"] = f'a string in quotes, such as "{value}"'
        if kind in numbers:
            form = numbers[kind]
        where = _of_model(document, place) + where
    if kind == "union_tag_not_found":
        return f"{where}.kind is missing"
    if kind in ("literal_error", "union_tag_invalid"):
        context = item["ctx"]
        if "tag" in context:
            where, value = f"{where}.kind", context["tag"]
        expected = context.get("expected") or context["expected_tags"]
        options = expected.replace("'", "").replace(" or ", ", ").split(", ")
        listed = f"{', '.join(options)}{nearest(str(value), options)}"
        return f"{where} is {value!r}; it must be one of {listed}"
    if kind == "string_pattern_mismatch":
        return f"{where} is {value!r}; write lower-case letters, digits, _ and -"
    if kind == "too_short":
        return f"{where} is empty"
    if form is not None:
        form = form.format_map(item.get("ctx", {}))
        if form == "a list" and isinstance(value, str) and not words.union:
            form += f", such as [{value}]"
        return f"{where} is {_short(value)}; {words.write}{form}"
    return f"{where} is {_short(value)}: {item['msg']}"


def _list_problem(name: str, value: Any, examples: list[Any] | None) -> str:
    """Return what to write; `examples` has that of a parameter which is a list written as text."""
    if not examples:
        return f"{name} is a list or filter, which mergekit interpolates by layer; write one value"
    items = value if isinstance(value, list) and all(isinstance(v, SCALARS) for v in value) else []
    text = ",".join(str(item) for item in items) or examples[0]
    return f'{name} is a list, which mergekit interpolates; write a string: "{text}"'


def _number_hint(value: Any) -> str:
    """Return how to write a number that YAML took for text, such as 1e-6 or "1"."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return f", and this is text (YAML reads 1e-6 and quoted numbers so): write {text}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
