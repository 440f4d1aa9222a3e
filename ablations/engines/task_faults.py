"""Why lm-eval cannot load a task, in words of the task's file. Knows lm-eval's configs and errors.

What a file says plainly is checked before its data is read; the rest is read off what lm-eval,
jinja2 and datasets raise.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablations.tasks.errors import DataAway, TaskFault
from ablations.tasks.floors import floor_of
from ablations.tasks.own_data import missing_files
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest

_NETWORK = ("requests", "httpx", "huggingface_hub", "urllib3", "aiohttp")
"""Packages whose errors are about a hub or the way to it."""

_NOT_CACHED = "Couldn't find cache for"
"""What datasets says of a hub's data set, offline, when it has only other parts of it."""

_UNDEFINED_ERROR = "UndefinedError"
"""What jinja2, in which lm-eval fills templates, raises for a field that is not there."""

_UNDEFINED = re.compile(r"'(.+)' is undefined")


@contextmanager
def told_faults(name: str, file: Path | None) -> Iterator[None]:
    """Raise what goes wrong with a task in the block as an error that says what to do.

    Args:
        name: of the task.
        file: its YAML file, if it has one.

    Raises:
        TaskFault: where the task's file or its data is wrong.
        DataAway: where a hub cannot be asked.
    """
    try:
        yield
    except LayerSwapError as error:
        if type(error) not in (InputError, DataAway) or error.message.startswith("task "):
            raise
        raise type(error)(f"task {name}: {error.message}") from error
    except Exception as error:  # a task runs code of its own, which may raise anything
        where = "" if file is None else f" ({file})"
        if _is_about_a_hub(error):
            raise DataAway(
                f"task {name}: its data is not on this machine and the hub cannot be asked "
                f"({describe_error(error)}); run this where there is a network, without "
                "HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or leave the task out"
            ) from error
        if (said := _undefined_field(error)) is not None:
            raise TaskFault(f"task {name}: {said}{where}") from error
        kind = "data" if isinstance(error, OSError) else "file or data"
        raise TaskFault(
            f"task {name}: its {kind} cannot be read: {describe_error(error)}{where}"
        ) from error


def check_config(config: Mapping[str, Any], file: Path) -> None:
    """Check what a task's file says of filters, of its floor and of data on this machine.

    Args:
        config: the content, with what it includes, its relative files placed.
        file: it.

    Raises:
        TaskFault: with every problem.
    """
    found = [*_unknown_filters(config), *missing_files(config, file)]
    try:
        floor_of(config.get("metadata"))
    except InputError as error:
        found.append(error.message)
    if found:
        name = config.get("task")
        raise TaskFault.from_problems(f"task {name}" if isinstance(name, str) else str(file), found)


def _unknown_filters(config: Mapping[str, Any]) -> Iterator[str]:
    import lm_eval.filters  # noqa: F401 - it fills the registry
    from lm_eval.api.registry import filter_registry

    known = list(filter_registry)
    pipelines = config.get("filter_list")
    for pipeline in pipelines if isinstance(pipelines, list) else ():
        steps = pipeline.get("filter") if isinstance(pipeline, dict) else None
        for step in steps if isinstance(steps, list) else ():
            name = step.get("function") if isinstance(step, dict) else None
            if isinstance(name, str) and name not in known:
                listed = nearest(name, known) or f"; valid are {', '.join(sorted(known))}"
                yield f"unknown filter {name!r}{listed}"


def _undefined_field(error: Exception) -> str | None:
    """Return which template names what the items do not have; None for other errors."""
    if type(error).__name__ != _UNDEFINED_ERROR:
        return None
    field = "a template"
    item: Any = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name.startswith("doc_to_"):
            field = frame.f_code.co_name
        item = frame.f_locals.get("doc", item)
    names = [str(name) for name in item] if isinstance(item, Mapping) else []
    matched = _UNDEFINED.search(str(error))
    if matched is None or not names:
        return f"{field}: {describe_error(error)}"
    name = matched[1]
    return f"{field} uses {name!r}; the items have {', '.join(names)}{nearest(name, names)}"


def _is_about_a_hub(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        package = type(seen).__module__.partition(".")[0]
        if isinstance(seen, ConnectionError | TimeoutError) or package in _NETWORK:
            return True
        if str(seen).startswith(_NOT_CACHED):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
