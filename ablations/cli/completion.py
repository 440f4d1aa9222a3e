"""What a shell completes: files, shipped names, tasks, and the models of runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

_STUDIES = Path(__file__).parents[1] / "studies"
_TRAINING = "experts/"

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def _recipe_names() -> Iterable[str]:
    from ablations.recipe_commands.find import shipped_names

    return (name for name in shipped_names() if not name.startswith(_TRAINING))


def _training_names() -> Iterable[str]:
    from ablations.recipe_commands.find import shipped_names

    names = (name for name in shipped_names() if name.startswith(_TRAINING))
    return (name.removeprefix(_TRAINING) for name in names)


def _completing(names: Callable[[], Iterable[str]], *, with_files: bool = True) -> Complete:
    """Return what completes an argument that is one of `names`, or a file."""

    def complete(
        context: click.Context, argument: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        # First: bash forgets what comes before it, and looks for files where no name fits.
        files = [CompletionItem(incomplete, type="file")] if with_files else []
        return files + [CompletionItem(name) for name in names() if name.startswith(incomplete)]

    return complete


def _completing_list(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Return what completes the last of several names that are joined by commas."""

    def complete(
        context: click.Context, argument: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        before, comma, last = incomplete.rpartition(",")
        every = (name for name in names(context) if name.startswith(last))
        return [CompletionItem(f"{before}{comma}{name}") for name in every]

    return complete


def _benchmarks(_: click.Context) -> Iterable[str]:
    from ablations.tasks.catalog import TITLES

    return TITLES


def _tasks(context: click.Context) -> Iterable[str]:
    from ablations.tasks.catalog import list_tasks
    from ablations.tasks.suites import read_suites
    from ablations.tasks.task_yaml import read_task_file, task_file_paths
    from layerswap_method.errors import InputError

    yield from (task.name for task in list_tasks())
    yield from read_suites()
    for folder in context.params.get("include_path") or ():
        with contextlib.suppress(InputError):  # a folder of too many files
            contents = (read_task_file(file).content for file in task_file_paths(Path(folder)))
            yield from (name for each in contents if isinstance(name := each.get("task"), str))


def _languages(_: click.Context) -> Iterable[str]:
    from ablations.tasks.catalog import list_tasks
    from ablations.tasks.names import language_name

    codes = sorted({task.language for task in list_tasks()})
    return (*codes, *(language_name(code).lower() for code in codes))


def _head(place: str) -> dict[str, Any]:
    """Return what `run.json` of a run folder says; nothing where there is none, or an old one."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        head: dict[str, Any] = json.loads((Path(place) / "run.json").read_bytes())
        if all("label" in model for model in head["models"]):
            return head
    return {"models": [], "cells": []}


def _run_named(context: click.Context) -> str:
    """Return the run folder of the argument ``RUN:MODEL``, which click leaves among `args`.

    It does so before an option that lacks its value.
    """
    place = context.params.get("model") or next(iter(context.args), "")
    return str(place).partition(":")[0]


def complete_run_task(
    context: click.Context, argument: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete a task of the run that the command names as ``RUN`` or ``RUN:MODEL``."""
    cells = _head(_run_named(context))["cells"]
    names = dict.fromkeys(task for cell in cells for task in cell["records"])
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_other_model(
    context: click.Context, argument: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete a model of the run that the command names, and as `complete_run_model` does."""
    models = _head(_run_named(context))["models"]
    names = [CompletionItem(model["label"]) for model in models]
    of_run = [name for name in names if name.value.startswith(incomplete)]
    return [*complete_run_model(context, argument, incomplete), *of_run]


def complete_run_model(
    context: click.Context, argument: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete ``RUN:MODEL`` by the models of a run folder, and everything else as a file."""
    folder, colon, start = incomplete.partition(":")
    names = [model["label"] for model in _head(folder)["models"]]
    if not colon or not names:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(f"{folder}:{name}") for name in names if name.startswith(start)]


class _Bash(BashComplete):
    """Bash takes words apart at colons and equals signs, and fills in what is behind the last."""

    _before = ""
    """The part of the last word that bash leaves as it is."""

    _is_quoted = False
    """Whether that word begins with a quotation mark."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the last one, and that one, each whole."""
        number = int(os.environ["COMP_CWORD"])
        text = os.environ["COMP_WORDS"]
        words = split_arg_string(text)[: number + 1]
        self._is_quoted = text.split("\n")[-1][:1] in ("'", '"')
        joined = words[:1]
        for before, word in itertools.pairwise(words):
            if _is_break(word) or _is_break(before):
                joined[-1] += word
                self._before = re.sub("[^:=]*$", "", joined[-1])
            else:
                joined.append(word)
                self._before = ""
        if number == len(words) and not _is_break(words[-1]):
            joined.append("")
            self._before = ""
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type and value; outside of quotes a space has a backslash, which bash halves."""
        value, space = (
            str(item.value).removeprefix(self._before),
            " " if self._is_quoted else r"\\ ",
        )
        return f"{item.type},{value.replace(' ', space)}"


def _is_break(word: str) -> bool:
    return bool(word) and not word.strip(":=")


def complete_in_bash() -> None:
    """Have bash complete words with colons."""
    add_completion_class(_Bash)


complete_place = _completing(tuple)
complete_benchmarks = _completing_list(_benchmarks)
complete_languages = _completing_list(_languages)
complete_tasks = _completing_list(_tasks)
complete_recipe = _completing(_recipe_names)
complete_recipe_name = _completing(_recipe_names, with_files=False)
complete_training = _completing(_training_names)
complete_study = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("*.yml")))
complete_experts = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("experts/*.yml")))
