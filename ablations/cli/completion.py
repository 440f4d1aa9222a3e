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


def _completing_list(names: Callable[[], Iterable[str]]) -> Complete:
    """Return what completes the last of several names that are joined by commas."""

    def complete(
        context: click.Context, argument: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        before, comma, last = incomplete.rpartition(",")
        every = (name for name in names() if name.startswith(last))
        return [CompletionItem(f"{before}{comma}{name}") for name in every]

    return complete


def _benchmarks() -> Iterable[str]:
    from ablations.tasks.catalog import TITLES

    return TITLES


def _tasks() -> Iterable[str]:
    from ablations.tasks.catalog import list_tasks
    from ablations.tasks.suites import read_suites

    return (*(task.name for task in list_tasks()), *read_suites())


def complete_run_model(
    context: click.Context, argument: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete ``RUN:MODEL`` by the models of a run folder, and everything else as a file."""
    folder, colon, start = incomplete.partition(":")
    names = list[str]()
    with contextlib.suppress(OSError, ValueError, KeyError):  # no run, or an old one
        head = json.loads((Path(folder) / "run.json").read_bytes())
        names = [model["label"] for model in head["models"]]
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
complete_tasks = _completing_list(_tasks)
complete_recipe = _completing(_recipe_names)
complete_recipe_name = _completing(_recipe_names, with_files=False)
complete_training = _completing(_training_names)
complete_study = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("*.yml")))
complete_experts = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("experts/*.yml")))
