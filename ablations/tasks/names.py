"""Names of tasks and languages in words, for tables and pages."""

from __future__ import annotations

import functools
import re

from ablations.tasks.catalog import PREFIX, TITLES, read_languages

_WORDS = {"twins": "minimal pairs"}
"""Word of a task's id -> how it is written; an id is part of keys and stays."""


def language_name(code: str) -> str:
    """Return ``Swahili`` for ``sw``; a code that the language table lacks stays as it is."""
    return str(read_languages().get(code, {"name": code})["name"])


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task in words.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, ``pocket_translate_en_sw`` is ``translate, English
    to Swahili``, and ``smol_math_twins_es`` is ``math minimal pairs, Spanish``. The name of any
    other task keeps its words, with languages by their names.
    """
    codes = read_languages()
    prefix = next((start for start in ("pocket_", "smol_", PREFIX) if task.startswith(start)), "")
    words = re.split(r"_|-(?=[a-z]{2}$)", task.removeprefix(prefix))
    # The languages are the words from `first` up to `end`.
    first = next((i for i, word in enumerate(words) if i and word in codes), len(words))
    end = next((i for i in range(first, len(words)) if words[i] not in codes), len(words))
    head = " ".join(_WORDS.get(word, word) for word in words[:first])
    if prefix == PREFIX and head in TITLES:
        head = TITLES[head].partition(" ")[0]
    languages = " to ".join(language_name(word) for word in words[first:end])
    suffix = re.sub(r"\b(\d+)shot\b", r"\1-shot", " ".join(words[end:]))
    return ", ".join(filter(None, (head, languages, suffix)))


def task_language(task: str) -> str:
    """Return the last two-letter part of a task's name, which is its language; else empty."""
    codes = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    return codes[-1] if codes else ""
