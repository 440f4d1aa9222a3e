"""The words of the pocket world in two languages, as `languages.yml` and a fixed seed have them.

English words are one token. Target-language content words, numbers included, are two syllables
out of 24, each a token, so that a word must be read by composing: no syllable means anything
alone. Person names are shared. The syllables are Swahili ones; the words are invented.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from layerswap_method.recipe.strict_yaml import read_yaml

Language = Literal["en", "sw"]
T = TypeVar("T")

LARGEST_NUMBER = 20
SYLLABLES = tuple(consonant + vowel for consonant in "bdgjklmt" for vowel in "aiu")

_TABLE: Any = read_yaml(Path(__file__).with_name("languages.yml"))
NAMES: tuple[str, ...] = tuple(_TABLE["names"])
NUMBERS = tuple(map(str, range(1, LARGEST_NUMBER + 1)))
CATEGORIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {**{name: tuple(words) for name, words in _TABLE["words"].items()}, "number": NUMBERS}
)
DEGREES: Mapping[str, str] = MappingProxyType(_TABLE["degrees"])
"""The two words of a comparison; one token in either language."""
SENTENCES: Mapping[str, Mapping[Language, str]] = MappingProxyType(
    {form: {"en": en, "sw": sw} for form, (en, sw) in _TABLE["sentences"].items()}
)


def _invent() -> tuple[dict[str, str], frozenset[str]]:
    """Return English word -> target word, and the rare half of every category."""
    rng = random.Random(11)
    pairs = [f"{first} {second}" for first in SYLLABLES for second in SYLLABLES]
    rng.shuffle(pairs)
    translation: dict[str, str] = {}
    rare: list[str] = []
    for words in CATEGORIES.values():
        translation |= {word: pairs.pop() for word in words}
        rare += rng.sample(words, len(words) // 2)
    return translation, frozenset(rare)


_CONTENT, RARE = _invent()
TRANSLATION: Mapping[str, str] = MappingProxyType({**_CONTENT, **DEGREES})
"""English content word, number or degree -> its target-language word. Names are shared."""


def say(value: str | int, language: Language) -> str:
    """Return a word (given by its English key), a name or a number in `language`."""
    word = str(value)
    return TRANSLATION.get(word, word) if language == "sw" else word


class WordSource:
    """Draws names, words and numbers; a draw is from the rare half with probability `rare`.

    Which words are rare is fixed for the world (`RARE`), so what is rare for one stream is rare
    for all of them.
    """

    def __init__(self, rng: random.Random, rare: float = 0.5) -> None:
        self.rng = rng
        self._rare = rare

    def word(self, category: str) -> str:
        """Return one English key of `category`."""
        return self._draw(CATEGORIES[category])

    def number(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return int(self._draw(map(str, range(low, high + 1))))

    def name(self) -> str:
        """Return one person's name."""
        return self.rng.choice(NAMES)

    def two_names(self) -> tuple[str, str]:
        """Return two different names."""
        first, second = self.rng.sample(NAMES, 2)
        return first, second

    def _draw(self, words: Iterable[str]) -> str:
        is_rare = self.rng.random() < self._rare
        return self.rng.choice([word for word in words if (word in RARE) == is_rare])


def two(draw: Callable[[], T]) -> tuple[T, T]:
    """Return two different things that `draw` gives."""
    first = second = draw()
    while second == first:
        second = draw()
    return first, second
