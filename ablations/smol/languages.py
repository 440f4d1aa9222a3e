"""The words and sentences of every language, as `languages.yml` has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from layerswap_method.recipe.strict_yaml import read_yaml

TARGETS = ("es", "fr", "de", "sw")
"""Target languages, from the one that the base knows best to the one that it does not know."""

LANGUAGES = ("en", *TARGETS)

_FIRST_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Sentence:
    """One sentence in no language yet."""

    form: str
    """A list of `languages.yml`, such as ``gain``."""

    number: int = 0
    """Which entry of the list."""

    slots: Mapping[str, str | int] = field(default_factory=dict)
    """Slot -> a name, a number, or the place of a word in its list."""

    def render(self, language: str) -> str:
        """Return the sentence in `language`, with its first letter as a capital."""
        words = table()[language]
        filled: dict[str, str] = {}
        for slot, value in self.slots.items():
            if slot in ("o", "p"):
                word, how_many, other = words["things"][value]
                end = "" if slot == "o" else "_p"
                filled |= {slot: word, f"how{end}": how_many, f"other{end}": other}
            elif slot in _LISTS:
                filled[slot] = words[_LISTS[slot]][value]
            else:
                filled[slot] = str(value)
        return capital(words[self.form][self.number].format_map(filled))


_LISTS = {"who": "subjects", "does": "verbs", "where": "places", "when": "times"}


def capital(text: str) -> str:
    """Return `text` with its first letter as a capital; ``¿`` is no letter."""
    return _FIRST_LETTER.sub(lambda found: found[0].upper(), text, count=1)


@cache
def table() -> dict[str, Any]:
    """Return language code -> words and sentences; ``names`` are those of all languages."""
    found = read_yaml(Path(__file__).with_suffix(".yml"))
    assert isinstance(found, dict)
    return found


def language_name(language: str) -> str:
    """Return the English name of a language code."""
    return str(table()[language]["name"])
