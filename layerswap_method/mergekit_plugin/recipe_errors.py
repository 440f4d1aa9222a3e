"""What is wrong with a recipe, reported before mergekit reads it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pydantic

from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.read import OUR_METHODS, read_recipe
from layerswap_method.recipe.references import named_models, syntax_problem
from layerswap_method.recipe.validation import validation_texts


def check_own(document: Mapping[str, Any], applies: Callable[[str], bool]) -> None:
    """Check a recipe if `applies` says that its method is, or nearly is, one of this project's."""
    name = document.get("merge_method")
    meant = meant_method(name) if isinstance(name, str) else ""
    if applies(meant):
        if name != meant:
            raise InputError(f"{meant} recipe: {method_problem(str(name))}")
        read_recipe(document)


def meant_method(name: str) -> str:
    """Return this project's method that `name` is, or nearly is; else an empty text.

    mergekit's registry takes seconds to import, so it is read only where it matters.
    """
    written = name.lower().replace("-", "_")
    if written in OUR_METHODS:
        return written
    if not difflib.get_close_matches(written, OUR_METHODS, n=1):
        return ""
    (close,) = difflib.get_close_matches(written, _all_methods(), n=1)
    return close if close in OUR_METHODS else ""


def method_problem(name: str) -> str | None:
    """Return why a recipe cannot have this `merge_method`; None where mergekit has it."""
    meant = meant_method(name)
    if meant:
        return None if name == meant else f"merge_method is {name!r}; did you mean {meant!r}?"
    known = _all_methods()
    if name in known:
        return None
    return f"merge_method is {name!r}; mergekit has {', '.join(known)}{nearest(name, known)}"


def check_form(document: Mapping[str, Any]) -> None:
    """Check that mergekit has a recipe's method, any method, and ignores nothing in it.

    Raises `InputError` with every problem.
    """
    from mergekit.config import MergeConfiguration

    name = str(document.get("merge_method"))
    problem = method_problem(name)
    listed = [] if problem is None else [problem]
    try:
        if problem is None or not meant_method(name):
            MergeConfiguration.model_validate(dict(document))
    except InputError:  # of this project's methods
        raise
    except pydantic.ValidationError as error:
        listed += validation_texts(MergeConfiguration, document, error)
    except (RuntimeError, ValueError) as error:
        references = (syntax_problem(reference) for reference in named_models(document))
        listed += [text for text in references if text] or [str(error)]
    if problem is None and name not in OUR_METHODS:
        known = MergeConfiguration.model_fields
        listed += (
            f"{key}: unknown key, which mergekit ignores{nearest(str(key), known)}"
            for key in document
            if key not in known
        )
        listed += _unknown_parameters(document, name)
    InputError.raise_any(f"{name} recipe" if problem is None else "recipe", listed)


def _unknown_parameters(document: Mapping[str, Any], method: str) -> Iterator[str]:
    from mergekit.merge_methods.registry import get

    known = sorted(parameter.name for parameter in get(method).spec.parameters)
    for where, name in _parameters(document):
        if name not in known:
            hint = nearest(name, known) if known else "; it has no parameters"
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
        for i, item in enumerate(value):
            yield from _parameters(item, f"{where}[{i}]")


def _all_methods() -> list[str]:
    from mergekit.merge_methods.registry import registered_methods

    return sorted({*(method.spec.name for method in registered_methods()), *OUR_METHODS})
