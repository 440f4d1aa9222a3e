"""The check of the arguments of `layerswap`'s functions, one for all of them."""

from __future__ import annotations

import functools
import importlib
import inspect
import numbers
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar, get_args

from layerswap_method.errors import InputError, nearest_of
from layerswap_method.file_names import path_problem

P = ParamSpec("P")
R = TypeVar("R")


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_settings(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_list_of(value: object, is_item: Callable[[object], bool]) -> bool:
    if not isinstance(value, Collection) or isinstance(value, Mapping | bytes):
        return False  # a column of a frame is a list, too
    return all(map(is_item, value))


def _has_folder(value: object) -> bool:
    """Return whether a value is a frame of `evaluate`, which has its run folder with it."""
    return "folder" in getattr(value, "attrs", ())


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "PathLike": (_is_path, "a path or a name"),
    "Paths": (lambda v: _is_path(v) or _is_list_of(v, _is_path), "a path or a list of paths"),
    "RecipeLike": (
        lambda v: _is_path(v) or isinstance(v, Mapping),
        "a file, the name of a shipped recipe, or a dict",
    ),
    "StudyLike": (
        lambda v: _is_path(v) or isinstance(v, Mapping),
        "a path, the name of a shipped study, or a dict",
    ),
    "Names": (
        lambda v: _is_list_of(v, lambda name: isinstance(name, str)),
        "a name or a list of names",
    ),
    "Settings": (_is_settings, "a dict such as {'limit': 20}"),
    "pd.DataFrame": (_has_folder, "a frame as evaluate returned it"),
    "str": (lambda v: isinstance(v, str), "a text"),
    "bool": (lambda v: isinstance(v, bool), "True or False"),
    "int": (
        lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool),
        "a whole number",
    ),
    "float": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool), "a number"),
}
"""Annotation of an argument -> (whether a value fits it, what it is in words)."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks its arguments by their annotations, as click does of options.

    Those are texts that join keys of `_FORMS` and None by ``|``, or the name of a Literal of the
    function's module and None.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _import_bars()
        signature = inspect.signature(function)
        for name in kwargs:
            _check_name(function.__name__, name, signature)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:  # too many, or one is missing
            raise InputError(f"{function.__name__}: {error}") from error
        check = functools.partial(_checked, vars(sys.modules[function.__module__]))
        for name, value in bound.arguments.items():
            form, kind = signature.parameters[name].annotation, signature.parameters[name].kind
            bound.arguments[name] = (
                tuple(check(f"{name}[{place}]", item, form) for place, item in enumerate(value))
                if kind is inspect.Parameter.VAR_POSITIONAL
                else check(name, value, form)
            )
        return function(*bound.args, **bound.kwargs)

    return call


def _import_bars() -> None:
    """Import tqdm's bars in a notebook, which then do not advise to install ipywidgets.

    Ours need none, and those of the libraries are hidden.
    """
    if "IPython" in sys.modules and "tqdm.auto" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("tqdm.auto")


def _check_name(function: str, name: str, signature: inspect.Signature) -> None:
    """Check that an argument may be written by its name."""
    parameters = signature.parameters.values()
    valid = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    if name not in valid:
        raise InputError(f"{function} has no argument {name!r}{nearest_of(name, valid)}")


def _checked(aliases: Mapping[str, Any], name: str, value: Any, annotation: str) -> Any:
    """Return a value that fits; a whole number of numpy as one of Python."""
    types = annotation.split(" | ")
    if value is None and "None" in types:
        return None
    if types[0] not in _FORMS:
        choices = get_args(aliases[types[0]])
        if value not in choices:
            raise InputError(f"{name} is {_short(value)}{nearest_of(str(value), choices)}")
        return value
    forms = [_FORMS[form] for form in types if form != "None"]
    if not any(fits(value) for fits, _ in forms):
        raise InputError(
            f"{name} is {_short(value)}; give {' or '.join(words for _, words in forms)}"
        )
    for path in [value] if _is_path(value) else value if "Paths" in types else ():
        is_path = {"PathLike", "Paths", "RecipeLike", "StudyLike"}.intersection(types)
        if is_path and (problem := path_problem(path)) is not None:
            raise InputError(f"{name} {problem}; give the path of a file or folder")
    if "int" not in types or isinstance(value, str):
        return value
    if value < 1:
        raise InputError(f"{name} is {value}; give 1 or more")
    return int(value)


def _short(value: object) -> str:
    is_short = value is None or isinstance(value, str | int | float)
    return repr(value) if is_short else f"of type {type(value).__name__}"
