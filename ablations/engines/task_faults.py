"""Why lm-eval cannot load a task, in words of the task's file.

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

from ablations.tasks.data import DataAway
from ablations.tasks.floors import floor_of
from layerswap_method.errors import InputError, LayerSwapError, describe_error, nearest, with_valid

_NETWORK = ("requests", "httpx", "huggingface_hub", "urllib3", "aiohttp")
"""Packages whose errors are about a hub or the way to it."""

_NOT_CACHED = "Couldn't find cache for"
"""What datasets says of a hub's data set, offline, when it has only other parts of it."""


class TaskFault(InputError):
    """No model can run this task until its file, or the place of its data, is mended."""


@contextmanager
def task_errors(name: str, file: Path | None) -> Iterator[None]:
    """Raise what goes wrong with a task in the block as an error that says what to do.

    Args:
        name: of the task.
        file: its YAML file, if it has one.

    Raises:
        TaskFault: where the task's file or its data is wrong.
        DataAway: where the hub cannot be reached.
    """
    try:
        yield
    except LayerSwapError as error:
        if type(error) not in (InputError, DataAway) or error.message.startswith("task "):
            raise
        raise type(error)(f"task {name}: {error.message}") from error
    except Exception as error:  # a task runs code of its own, which may raise anything
        if _is_about_a_hub(error):
            raise DataAway(
                f"task {name}: its data is not on this machine and the hub cannot be reached "
                f"({describe_error(error)}); run this where there is a network, without "
                "HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or leave the task out"
            ) from error
        kind = "data" if isinstance(error, OSError) else "file or data"
        problem = f"its {kind} cannot be read: {describe_error(error)}"
        where = "" if file is None else f" ({file})"
        raise TaskFault(f"task {name}: {_undefined_field(error) or problem}{where}") from error


def check_config(config: Mapping[str, Any], file: Path) -> None:
    """Check the filters and the floor that a task's file names.

    Args:
        config: the content, with what it includes.
        file: it.

    Raises:
        TaskFault: with every problem.
    """
    found = [*_unknown_filters(config)]
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
    for pipeline in _dicts(config.get("filter_list")):
        for step in _dicts(pipeline.get("filter")):
            name = step.get("function")
            if isinstance(name, str) and name not in known:
                yield f"unknown filter {name!r}{nearest(name, known) or with_valid('', known)}"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _undefined_field(error: Exception) -> str | None:
    """Return which template names what the items do not have; None for other errors."""
    if type(error).__name__ != "UndefinedError":  # jinja2's, in which lm-eval fills templates
        return None
    field = "a template"
    item: Any = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name.startswith("doc_to_"):
            field = frame.f_code.co_name
        item = frame.f_locals.get("doc", item)
    names = [str(name) for name in item] if isinstance(item, Mapping) else []
    matched = re.search(r"'(.+)' is undefined", str(error))
    if matched is None or not names:
        return f"{field}: {describe_error(error)}"
    name = matched[1]
    return f"{field} uses {name!r}; the items have {', '.join(names)}{nearest(name, names)}"


def _is_about_a_hub(error: BaseException | None) -> bool:
    if error is None:
        return False
    return (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__module__.partition(".")[0] in _NETWORK
        or str(error).startswith(_NOT_CACHED)
        or _is_about_a_hub(error.__cause__ or error.__context__)
    )
