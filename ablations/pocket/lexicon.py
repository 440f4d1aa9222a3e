"""The words of the pocket world in two languages; knows no sentences.

Every content word is an English key with one Swahili-like translation. Person names and the
numbers are shared by both languages. Real Swahili inflects by noun class; this one does not.
"""

from __future__ import annotations

import random
from types import MappingProxyType
from typing import Literal

Language = Literal["en", "sw"]
Category = Literal["item", "gain", "loss", "animal", "adjective", "place", "attitude"]

LARGEST_NUMBER = 30
NAMES = ("Juma", "Amina", "Tom", "Anna", "Ali", "Maria", "Peter", "Neema", "John", "Zawadi")


def _pairs(english: str, swahili: str) -> MappingProxyType[str, str]:
    return MappingProxyType(dict(zip(english.split(), swahili.split(), strict=True)))


CATEGORIES: MappingProxyType[Category, MappingProxyType[str, str]] = MappingProxyType(
    {
        "item": _pairs(
            "apples books pens eggs oranges mangoes cups balls"
            " flowers fish coins stones keys hats chairs bags",
            "matufaha vitabu kalamu mayai machungwa maembe vikombe mipira"
            " maua samaki sarafu mawe funguo kofia viti mifuko",
        ),
        "gain": _pairs(
            "finds buys gets receives collects picks earns borrows",
            "anaokota ananunua anapata anapokea anakusanya anachuma anavuna anaazima",
        ),
        "loss": _pairs(
            "loses sells eats drops breaks donates burns hides",
            "anapoteza anauza anakula anaangusha anavunja anatoa anachoma anaficha",
        ),
        "animal": _pairs(
            "dog cat cow goat lion horse bird snake",
            "mbwa paka ng'ombe mbuzi simba farasi ndege nyoka",
        ),
        "adjective": _pairs(
            "big small white black red old young good",
            "kubwa ndogo nyeupe nyeusi nyekundu mzee kijana nzuri",
        ),
        "place": _pairs("house school market farm river town", "nyumba shule soko shamba mto mji"),
        "attitude": _pairs("sees likes wants knows", "anaona anapenda anataka anajua"),
    }
)
DEGREES = _pairs("more fewer", "zaidi pungufu")
"""The two words of a comparison."""

TRANSLATION: MappingProxyType[str, str] = MappingProxyType(
    {en: sw for words in (*CATEGORIES.values(), DEGREES) for en, sw in words.items()}
)
"""English content word → its Swahili word. Names and numbers are not in it: they are shared."""


def say(value: str | int, language: Language) -> str:
    """Return a word (given by its English key), a name or a number in `language`."""
    word = str(value)
    return TRANSLATION.get(word, word) if language == "sw" else word


class WordSource:
    """Draws names and words; the frequency of a word falls with its rank to the power `zipf`.

    The ranking is a fixed permutation per category, the same for every source, so a word that
    is rare for one stream is rare for all of them. `zipf` 0 draws uniformly.
    """

    def __init__(self, rng: random.Random, zipf: float = 0.0) -> None:
        self.rng = rng
        ranking = random.Random(7)
        self._words: dict[Category, tuple[list[str], list[float]]] = {}
        for category, words in CATEGORIES.items():
            ranked = list(words)
            ranking.shuffle(ranked)
            weights = [(rank + 1) ** -zipf for rank in range(len(ranked))]
            self._words[category] = (ranked, weights)

    def word(self, category: Category) -> str:
        """Return one English key of `category`."""
        ranked, weights = self._words[category]
        return self.rng.choices(ranked, weights)[0]

    def two_words(self, category: Category) -> tuple[str, str]:
        """Return two different English keys of `category`."""
        first = second = self.word(category)
        while second == first:
            second = self.word(category)
        return first, second

    def name(self) -> str:
        """Return one person's name."""
        return self.rng.choice(NAMES)

    def two_names(self) -> tuple[str, str]:
        """Return two different names."""
        first, second = self.rng.sample(NAMES, 2)
        return first, second
