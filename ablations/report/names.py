"""What tasks and languages are called where people read. Knows names; no score."""

from __future__ import annotations

import functools

from ablations.tasks.catalog import PREFIX, TITLES
from ablations.tasks.languages import Language, load_languages

_POCKET = "pocket_"
"""Begins the names of the testbed's tasks (`ablations.pocket.tasks`)."""


def language_name(code: str) -> str:
    """Return ``Swahili`` for ``sw``; a code that the language table lacks stays as it is."""
    found = _languages().get(code)
    return code if found is None else found.name


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task as a reader says it.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, and ``pocket_translate_en_sw`` is ``translate,
    English to Swahili``. The name of any other task keeps its words, with languages by their names.
    """
    known = _languages()
    words = task.removeprefix(_POCKET).removeprefix(PREFIX).split("_")
    first = next((at for at, word in enumerate(words) if at and word in known), len(words))
    after = next((at for at in range(first, len(words)) if words[at] not in known), len(words))
    head = " ".join(words[:first])
    if task.startswith(PREFIX) and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(known[word].name for word in words[first:after])
    return ", ".join(filter(None, (head, languages, " ".join(words[after:]))))


@functools.cache
def _languages() -> dict[str, Language]:
    return load_languages()
