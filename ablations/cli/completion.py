"""What a shell completes: files, shipped names of recipes, studies, experts and training, tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_STUDIES = Path(__file__).parents[1] / "studies"
_TRAINING = "experts/"

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]


def _recipe_names() -> Iterable[str]:
    from ablations.gallery.find import shipped_names

    return (name for name in shipped_names() if not name.startswith(_TRAINING))


def _training_names() -> Iterable[str]:
    from ablations.gallery.find import shipped_names

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


complete_place = _completing(tuple)
complete_benchmarks = _completing_list(_benchmarks)
complete_tasks = _completing_list(_tasks)
complete_recipe = _completing(_recipe_names)
complete_recipe_name = _completing(_recipe_names, with_files=False)
complete_training = _completing(_training_names)
complete_study = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("*.yml")))
complete_experts = _completing(lambda: sorted(file.stem for file in _STUDIES.glob("experts/*.yml")))
