"""lm-eval's suites in many languages: task names with ``{lang}`` in place of a language's code.

Every suite has codes of its own: Swahili is ``swh_Latn`` in Belebele, ``swa`` in AfriMGSM, and
``swahili`` would be INCLUDE's way. `suites.json`, which ``python -m tools.task_suites`` writes from
the installed lm-eval, has them by the codes of `language_names.yml`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from layerswap_method.errors import InputError, with_valid

PLACEHOLDER = "{lang}"
"""Stands in a task's name for a language."""

SUITES_FILE = Path(__file__).parent / "suites.json"


class Suite(NamedTuple):
    """A benchmark of lm-eval in several languages."""

    title: str
    codes: dict[str, str]
    """Code of a language -> how the suite writes it in its names."""


class SuiteTask(NamedTuple):
    """A task's name, taken apart."""

    title: str
    """Title of its suite."""

    language: str
    part: str
    """Words of the part of the suite that it is, such as ``biology``; empty for the whole."""


@functools.cache
def read_suites() -> dict[str, Suite]:
    """Return task name with ``{lang}`` -> suite."""
    content = json.loads(SUITES_FILE.read_text(encoding="utf-8"))
    return {name: Suite(suite["title"], suite["codes"]) for name, suite in content.items()}


def in_language(name: str, code: str) -> str:
    """Return a task's name with a language in place of ``{lang}``.

    The name of no suite, such as that of a user's task, gets the code as it is.

    Raises:
        InputError: for a language that the suite does not have, with those that it has.
    """
    suite = read_suites().get(name)
    if suite is None or code in suite.codes.values():
        return name.replace(PLACEHOLDER, code)
    if code not in suite.codes:
        raise InputError(with_valid(f"{name}: there is no {code!r}", suite.codes))
    return name.replace(PLACEHOLDER, suite.codes[code])


def in_languages(names: Iterable[str], codes: Sequence[str]) -> tuple[str, ...]:
    """Return the names, those with ``{lang}`` in each of the languages, each once.

    Raises:
        InputError: with every language that a suite does not have.
    """
    listed, problems = dict[str, None](), dict[str, None]()
    for name in names:
        for code in codes if PLACEHOLDER in name else ("",):
            try:
                listed[in_language(name, code)] = None
            except InputError as error:
                problems[error.message] = None
    if problems:
        raise InputError("\n".join(problems))
    return tuple(listed)


@functools.cache
def _languages_by_task() -> dict[str, tuple[str, str]]:
    """Return a task's name -> title of its suite and language."""
    return {
        name.replace(PLACEHOLDER, code): (suite.title, language)
        for name, suite in read_suites().items()
        for language, code in suite.codes.items()
    }


def suite_task(task: str) -> SuiteTask | None:
    """Return what the name of a task of a suite, or of a part of one, says; None for others."""
    words, tasks = task.split("_"), _languages_by_task()
    for end in range(len(words), 0, -1):
        if (match := tasks.get("_".join(words[:end]))) is not None:
            return SuiteTask(*match, " ".join(words[end:]))
    return None
