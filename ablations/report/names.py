"""What tasks and languages are called where people read. Knows names; no score."""

from __future__ import annotations

import functools
import re

from ablations.tasks.catalog import PREFIX, TITLES
from ablations.tasks.languages import Language, load_languages

_TESTBEDS = ("pocket_", "smol_")
"""Begin the names of the testbeds' tasks (`ablations.pocket.tasks`, `ablations.smol`)."""


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
    prefix = next((each for each in (*_TESTBEDS, PREFIX) if task.startswith(each)), "")
    words = task.removeprefix(prefix).split("_")
    first = next((at for at, word in enumerate(words) if at and word in known), len(words))
    after = next((at for at in range(first, len(words)) if words[at] not in known), len(words))
    head = " ".join(words[:first])
    if task.startswith(PREFIX) and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(known[word].name for word in words[first:after])
    return ", ".join(filter(None, (head, languages, _shots(" ".join(words[after:])))))


def _shots(text: str) -> str:
    """Return ``4-shot`` for ``4shot``."""
    return re.sub(r"\b(\d+)shot\b", r"\1-shot", text)


@functools.cache
def _languages() -> dict[str, Language]:
    return load_languages()
