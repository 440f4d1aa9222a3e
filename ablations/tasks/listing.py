"""The list of `layerswap tasks`: the shipped tasks, and lm-eval's suites in many languages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ablations.drawing.text_table import list_table, wrapped
from ablations.tasks.catalog import PREFIX, TITLES, UNSEEN, as_code, list_tasks
from ablations.tasks.suites import PLACEHOLDER, read_suites
from layerswap_method.errors import InputError, nearest, with_valid

LM_EVAL = "lm-eval"
"""Source of the tasks that lm-eval brings."""


_MOST_CODES = 20
"""Languages that a row names; of more it has the number."""

_OTHER_PROMPT = re.compile("_prompt_[2-9]$")
"""Ends the names of a suite's further prompts, which have no row of their own."""


class ListedTask(NamedTuple):
    """A task that can be evaluated by its name."""

    name: str
    benchmark: str
    language: str
    """Code of the language."""

    protocol: str
    """Examples, metrics and filters of ours; title of lm-eval's suite."""

    source: str
    """Data set on the hub, or ``lm-eval`` for its own tasks."""


def listed_tasks(
    languages: Sequence[str] = (), benchmarks: Sequence[str] = ()
) -> tuple[ListedTask, ...]:
    """Return the shipped tasks, then those of lm-eval's suites.

    Args:
        languages: codes or English names; a script may follow a code (``hi_Latn``), and without one
            all scripts are meant. None: every language.
        benchmarks: their names here or in lm-eval; ``mgsm`` also means ``mgsm_direct``. None: all.

    Raises:
        InputError: for a language or a benchmark that no task has, or where both together leave
            none.
    """
    every = (*_shipped(), *_of_suites())
    codes, problems = [as_code(language) for language in languages], []
    known = dict.fromkeys(task.language for task in every)
    for code in codes:
        if not any(_is_in(language, [code]) for language in known):
            written = dict.fromkeys(language.partition("_")[0] for language in known)
            hint = nearest(code, known) or with_valid("", written)
            problems.append(f"no task is in {code!r}{hint}")
    names, listed = {task.benchmark: None for task in every}, "; layerswap tasks lists them"
    for name in benchmarks:
        if not any(_is_of(benchmark, [name]) for benchmark in names):
            problems.append(f"no benchmark {name!r}{nearest(name, names) or listed}")
    chosen = tuple(
        task
        for task in every
        if (not codes or _is_in(task.language, codes))
        and (not benchmarks or _is_of(task.benchmark, benchmarks))
    )
    if not problems and not chosen:
        there = dict.fromkeys(t.language for t in every if _is_of(t.benchmark, benchmarks))
        problems.append(
            f"no task of {', '.join(benchmarks)} is in {', '.join(codes)}; there are "
            f"{', '.join(there)}"
        )
    if problems:
        raise InputError("\n".join(problems))
    return chosen


def _is_in(language: str, codes: Iterable[str]) -> bool:
    return any(code in (language, language.partition("_")[0]) for code in codes)


def _is_of(benchmark: str, names: Iterable[str]) -> bool:
    return any(f"{benchmark}_".startswith(f"{name}_") for name in names)


def _shipped() -> list[ListedTask]:
    return [
        ListedTask(
            task.name,
            task.benchmark,
            task.language,
            task.protocol,
            f"{task.source} ({', '.join(task.configs)})",
        )
        for task in list_tasks()
    ]


def _of_suites() -> list[ListedTask]:
    return [
        ListedTask(
            name.replace(PLACEHOLDER, written),
            name.replace(f"_{PLACEHOLDER}", ""),
            code,
            suite.title,
            LM_EVAL,
        )
        for name, suite in read_suites().items()
        for code, written in suite.codes.items()
    ]


def describe_tasks(tasks: Sequence[ListedTask], width: int | None = None) -> str:
    """Return a table of tasks; see `list_table`."""
    rows = [(task.name, task.language, task.protocol, task.source) for task in tasks]
    return list_table(("task", "language", "protocol", "source"), rows, width)


def _in_short(codes: Sequence[str]) -> str:
    return " ".join(codes) if len(codes) <= _MOST_CODES else f"{len(codes)} languages"


def describe_benchmarks(width: int | None = None) -> str:
    """Return a row for each benchmark and suite, with its languages; see `list_table`."""
    by_name: dict[str, tuple[str, dict[str, None]]] = {}
    for task in list_tasks():
        name = f"{PREFIX}{task.benchmark}"
        by_name.setdefault(name, (task.title, {}))[1][task.language] = None
    rows = [(name, title, _in_short([*codes])) for name, (title, codes) in by_name.items()]
    for name, suite in read_suites().items():
        if not _OTHER_PROMPT.search(name):
            rows.append((name, f"{LM_EVAL}: {suite.title}", _in_short([*suite.codes])))
    unseen = " and ".join(TITLES[benchmark].partition(" ")[0] for benchmark in UNSEEN)
    notes: tuple[str, ...] = (
        f"{PLACEHOLDER} is a language. A benchmark ({PREFIX}mgsm) and a language ({PREFIX}sw) are "
        "groups of tasks, too.",
        f"Not tried on their data, which we could not open: {unseen}.",
        "Suites that end in _prompt_1 have the prompts 2 to 5, too.",
        "Tasks one by one: layerswap tasks --language sw --benchmark mgsm",
    )
    table = list_table(("benchmark", "title", "languages"), rows, width)
    if width is not None:
        notes = tuple(wrapped(note, width) for note in notes)
    return "\n\n".join([table, *notes])
