"""Faults of a recipe, reported before mergekit reads it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic

from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.read import read_recipe
from layerswap_method.methods.table import OUR_METHODS
from layerswap_method.recipe.references import named_models, syntax_problem
from layerswap_method.recipe.validation import validation_texts


def check_own(document: Mapping[str, Any], applies: Callable[[str], bool]) -> None:
    """Check a recipe if `applies` says that its method is, or nearly is, one of this project's."""
    name = document.get("merge_method")
    method = meant_method(name) if isinstance(name, str) else ""
    if applies(method):
        if name != method:
            raise InputError(f"{method} recipe: {method_problem(str(name))}")
        read_recipe(document)


def meant_method(name: str) -> str:
    """Return this project's method that `name` is, or nearly is; else an empty text.

    mergekit's registry takes seconds to import, so it is read only where it matters.
    """
    spelled = name.lower().replace("-", "_")
    if spelled in OUR_METHODS:
        return spelled
    if not difflib.get_close_matches(spelled, OUR_METHODS, n=1):
        return ""
    (nearest_method,) = difflib.get_close_matches(spelled, _all_methods(), n=1)
    return nearest_method if nearest_method in OUR_METHODS else ""


def method_problem(name: str) -> str | None:
    """Return why a recipe cannot have this `merge_method`; None where mergekit has it."""
    method = meant_method(name)
    if method:
        return None if name == method else f"merge_method is {name!r}; did you mean {method!r}?"
    methods = _all_methods()
    if name in methods:
        return None
    return f"merge_method is {name!r}; mergekit has {', '.join(methods)}{nearest(name, methods)}"


def check_form(document: Mapping[str, Any]) -> None:
    """Check that mergekit has a recipe's method, any method, and ignores nothing in it.

    Raises `InputError` with every problem.
    """
    from mergekit.config import MergeConfiguration

    name = str(document.get("merge_method"))
    problem = method_problem(name)
    problems = [] if problem is None else [problem]
    try:
        if problem is None or not meant_method(name):
            MergeConfiguration.model_validate(dict(document))
    except InputError:  # of this project's methods
        raise
    except pydantic.ValidationError as error:
        problems += validation_texts(MergeConfiguration, document, error)
    except (RuntimeError, ValueError) as error:
        syntax_problems = (syntax_problem(reference) for reference in named_models(document))
        problems += [text for text in syntax_problems if text] or [str(error)]
    if problem is None and name not in OUR_METHODS:
        keys = MergeConfiguration.model_fields
        problems += (
            f"{key}: unknown key, which mergekit ignores{nearest(str(key), keys)}"
            for key in document
            if key not in keys
        )
        problems += _unknown_parameters(document, name)
    InputError.raise_any(f"{name} recipe" if problem is None else "recipe", problems)


def _unknown_parameters(document: Mapping[str, Any], method: str) -> Iterator[str]:
    from mergekit.merge_methods.registry import get

    parameters = sorted(parameter.name for parameter in get(method).spec.parameters)
    for where, name in _parameters(document):
        if name not in parameters:
            hint = nearest(name, parameters) if parameters else "; it has no parameters"
            yield f"{where}unknown parameter {name!r} of {method}, which mergekit ignores{hint}"


def _parameters(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (place of its block, name) of every parameter in a recipe."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "parameters" and isinstance(item, Mapping):
                yield from ((f"{where}: " if where else "", str(name)) for name in item)
            elif key != "tokenizer":
                yield from _parameters(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _parameters(item, f"{where}[{position}]")


def _all_methods() -> list[str]:
    from mergekit.merge_methods.registry import registered_methods

    return sorted({*(method.spec.name for method in registered_methods()), *OUR_METHODS})
