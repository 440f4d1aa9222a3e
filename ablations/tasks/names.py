"""Names of tasks and languages in words, for tables and pages."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from ablations.tasks.catalog import LANGUAGE_NAMES, LANGUAGES, PREFIX, TITLES, read_languages
from ablations.tasks.suites import suite_task

_WORDS = {"twins": "minimal pairs"}
"""Word of a task's id -> how it is written; an id is part of keys and stays."""

_SHOTS = re.compile(r"(\d+)shot")


def language_name(code: str) -> str:
    """Return ``Swahili`` for ``sw`` and ``Hindi (Latn)`` for ``hi_Latn``.

    A code that the table lacks stays as it is.
    """
    code, _, script = code.partition("_")
    name = str(read_languages(LANGUAGE_NAMES).get(code, {"name": code})["name"])
    return f"{name} ({script})" if script else name


def language_script(code: str) -> str:
    """Return the ISO 15924 code of the script in which a language is written; else empty."""
    return str(read_languages(LANGUAGE_NAMES).get(code, {"script": ""})["script"])


@functools.cache
def task_name(task: str) -> str:
    """Return lm-eval's name of a task in words.

    ``layerswap_mgsm_sw`` is ``MGSM, Swahili``, ``pocket_translate_en_sw`` is ``translate, English
    to Swahili``, ``smol_math_twins_es`` is ``math minimal pairs, Spanish``, and lm-eval's
    ``belebele_swh_Latn`` is ``Belebele, Swahili``. The name of any other task keeps its words, with
    languages by their names.
    """
    if (of_suite := suite_task(task)) is not None:
        return ", ".join(
            filter(None, (of_suite.title, language_name(of_suite.language), of_suite.part))
        )
    prefix = next((start for start in ("pocket_", "smol_", PREFIX) if task.startswith(start)), "")
    words = re.split(r"_|-(?=[a-z]{2}$)", task.removeprefix(prefix))
    # The languages are the words from `first` up to `end`.
    first = next((i for i in range(1, len(words)) if _is_language(words, i)), len(words))
    end = next((i for i in range(first, len(words)) if not _is_language(words, i)), len(words))
    head = " ".join(_WORDS.get(word, word) for word in words[:first])
    if prefix == PREFIX:
        head = TITLES.get("_".join(words[:first]), head).partition(" ")[0]
    languages = " to ".join(language_name(word) for word in words[first:end])
    suffix = _SHOTS.sub(r"\1-shot", " ".join(words[end:]))
    return ", ".join(filter(None, (head, languages, suffix)))


def _is_language(words: list[str], place: int) -> bool:
    """Return whether a word of a task's id is a language.

    Many codes are English words (it, my, am): other codes than those of MGSM count at the end only.
    """
    if "mgsm" in read_languages(LANGUAGES).get(words[place], {}):
        return True
    rest = [word for word in words[place:] if not _SHOTS.fullmatch(word)]
    return words[place] != "to" and bool(rest) and {*rest} <= read_languages(LANGUAGE_NAMES).keys()


def task_language(task: str, stated: Mapping[str, str]) -> str:
    """Return the code of a task's language; empty where neither metadata nor its name has one.

    The name has that of lm-eval's suite, or its last part that is a code: of two letters where it
    has none that is known.

    Args:
        task: lm-eval's name of the task.
        stated: task -> code of its language, as its metadata say; see `RunFile.task_languages`.
    """
    if task in stated:
        return stated[task]
    if (of_suite := suite_task(task)) is not None:
        return of_suite.language
    parts = [part for part in re.split(r"[_\-]", task.lower()) if re.fullmatch("[a-z]{2}", part)]
    codes = [part for part in parts if part in read_languages(LANGUAGE_NAMES)]
    return next(reversed(codes or parts), "")
