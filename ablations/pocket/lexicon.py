"""The words of the pocket world in two languages.

English words are one token. Target-language content words, numbers included, are two syllables
out of 24, each a token, so that a word must be read by composing: no syllable means anything
alone. Person names are shared. The syllables are Swahili ones; the words are invented.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import MappingProxyType
from typing import Literal

Language = Literal["en", "sw"]
Category = Literal["item", "gain", "loss", "animal", "adjective", "number"]

LARGEST_NUMBER = 20
NAMES = ("Juma", "Amina", "Tom", "Anna", "Ali", "Maria", "Peter", "Neema")
SYLLABLES = tuple(consonant + vowel for consonant in "bdgjklmt" for vowel in "aiu")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CATEGORIES: MappingProxyType[Category, tuple[str, ...]] = MappingProxyType(
    {
        "item": _words("apples books pens eggs oranges cups balls coins stones keys"),
        "gain": _words("finds buys gets picks earns borrows"),
        "loss": _words("loses sells eats drops breaks burns"),
        "animal": _words("dog cat cow goat lion bird"),
        "adjective": _words("big small white black old young"),
        "number": tuple(map(str, range(1, LARGEST_NUMBER + 1))),
    }
)
DEGREES = MappingProxyType({"more": "zaidi", "fewer": "pungufu"})
"""The two words of a comparison; one token in either language."""


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
TRANSLATION: MappingProxyType[str, str] = MappingProxyType({**_CONTENT, **DEGREES})
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

    def word(self, category: Category) -> str:
        """Return one English key of `category`."""
        return self._draw(CATEGORIES[category])

    def number(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return int(self._draw(map(str, range(low, high + 1))))

    def _draw(self, words: Iterable[str]) -> str:
        is_rare = self.rng.random() < self._rare
        return self.rng.choice([word for word in words if (word in RARE) == is_rare])

    def two_words(self, category: Category) -> tuple[str, str]:
        """Return two different English keys of `category`."""
        first = second = self.word(category)
        while second == first:
            second = self.word(category)
        return first, second

    def two_numbers(self, low: int, high: int) -> tuple[int, int]:
        """Return two different numbers from `low` to `high`."""
        first = second = self.number(low, high)
        while second == first:
            second = self.number(low, high)
        return first, second

    def name(self) -> str:
        """Return one person's name."""
        return self.rng.choice(NAMES)

    def two_names(self) -> tuple[str, str]:
        """Return two different names."""
        first, second = self.rng.sample(NAMES, 2)
        return first, second
