"""The top-level parameters of a recipe, read into a frozen model with every problem in words.

Knows pydantic's errors and what mergekit makes of YAML values; not which method has which
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import pydantic

from layerswap_method.errors import nearest

SCALARS = (bool, int, float, str)
"""What one value of a parameter can be; mergekit interpolates lists and filters by layer."""

_Spec = TypeVar("_Spec", bound=pydantic.BaseModel)


def read_parameters(
    model: type[_Spec], parameters: Mapping[str, Any], *, of_models: Collection[str] = ()
) -> tuple[_Spec | None, list[str]]:
    """Return the parameters as `model` (None where they are no such), and every problem.

    Args:
        model: the frozen model of the method's top-level parameters.
        parameters: name -> value, as mergekit parsed them.
        of_models: names that belong under each model's ``parameters:``.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    unread = False
    known = tuple(model.model_fields)
    for name, value in parameters.items():
        if name in of_models:
            problems.append(f"{name} belongs under the parameters: of each model, not at the top")
        elif name not in known:
            hint = nearest(str(name), (*of_models, *known))
            problems.append(f"unknown parameter {name!r}{hint}")
        elif not isinstance(value, SCALARS):
            examples = model.model_fields[name].examples or [None]
            problems.append(_list_problem(name, value, examples[0]))
            unread = True
        else:
            values[name] = value
    try:
        return model(**values), problems
    except pydantic.ValidationError as error:
        found = error.errors()
        if unread:  # what does not fit together may fit once every value is read
            found = [item for item in found if item["loc"]]
        return None, problems + [_value_problem(item) for item in found]


def _list_problem(name: str, value: Any, example: str | None) -> str:
    """Return what to write; `example` is that of a parameter which is a list written as text."""
    if example is None:
        return f"{name} is a list or filter, which mergekit interpolates by layer; write one value"
    items = value if isinstance(value, list) and all(isinstance(v, SCALARS) for v in value) else []
    text = ",".join(str(item) for item in items) or example
    return f'{name} is a list, which mergekit interpolates; write a string: "{text}"'


def _value_problem(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"])
    value = item.get("input")
    if item["type"] == "literal_error":
        expected = item["ctx"]["expected"]
        options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(", ")]
        return f"{name} is {value!r}; it must be {expected}{nearest(str(value), options)}"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    if item["type"] == "string_type":
        return f'{name} is {value!r}; it must be a string in quotes, such as "{value}"'
    if item["type"] == "int_type":
        return f"{name} is {value!r}; it must be a whole number"
    if item["type"] == "float_type":
        return f"{name} is {value!r}; it must be one number{number_hint(value)}"
    return f"{name} is {value!r}: {item['msg']}"


def number_hint(value: Any) -> str:
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


def shown(value: Any) -> str:
    """Return a setting for a message; mergekit's filters have no readable form."""
    flat = value if isinstance(value, list) else [value]
    return repr(value) if all(isinstance(v, SCALARS) for v in flat) else "a list or filter"
