"""The pocket world: words in two languages, sentences and word problems of them.

English words are one token. Target-language content words, numbers included, are two syllables
out of 24, each a token, so that a word must be read by composing: no syllable means anything
alone. Person names are shared. The syllables are Swahili ones; the words are invented.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

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
    """Draws names, words and numbers; a draw is from the rare half with probability `rare`."""

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


LanguageChoice = Callable[[], Language]
"""Gives the language of the next slot: code switching."""


class WorldSentence:
    """One fact or question: a form of `languages.yml`, its slots English keys, names, numbers."""

    def __init__(self, form: str, **slots: str | int) -> None:
        self.form = form
        self.slots = slots

    def render(self, language: Language, switch: LanguageChoice | None = None) -> str:
        """Return the sentence, tokens apart by single spaces; `switch` chooses slots' languages."""
        words = {
            slot: say(value, switch() if switch else language) for slot, value in self.slots.items()
        }
        return SENTENCES[self.form][language].format_map(words)


def render_all(
    sentences: Iterable[WorldSentence], language: Language, switch: LanguageChoice | None = None
) -> str:
    """Return the sentences as one text, separated by single spaces."""
    return " ".join(sentence.render(language, switch) for sentence in sentences)


def draw_change(words: WordSource, owner: str, item: str) -> tuple[WorldSentence, int]:
    """Return a change of 1 to 9 items and its signed amount."""
    gains = words.rng.random() < 0.5
    count = words.number(1, 9)
    verb = words.word("gain" if gains else "loss")
    sentence = WorldSentence("change", owner=owner, verb=verb, count=count, item=item)
    return sentence, count if gains else -count


def draw_statement(words: WordSource) -> WorldSentence:
    """Return one statement that stands alone."""
    form = words.rng.random()
    if form < 0.35:
        owner, count = words.name(), words.number(1, LARGEST_NUMBER)
        return WorldSentence("has", owner=owner, count=count, item=words.word("item"))
    if form < 0.70:
        return draw_change(words, words.name(), words.word("item"))[0]
    if form < 0.80:
        owner, other_owner = words.two_names()
        degree = words.rng.choice(("more", "fewer"))
        count, item = words.number(1, 9), words.word("item")
        return WorldSentence(
            "compare", owner=owner, count=count, item=item, degree=degree, other=other_owner
        )
    animal, adjective = words.word("animal"), words.word("adjective")
    return WorldSentence("description", animal=animal, adjective=adjective)


_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class CalculationStep(NamedTuple):
    """One equation of a chain of thought: ``left operator right = result``."""

    left: int
    operator: str
    """``+``, ``-``, ``*``, or ``/`` without a remainder."""
    right: int

    @property
    def result(self) -> int:
        """The value of the equation."""
        value: int = _OPERATIONS[self.operator](self.left, self.right)
        return value

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right} = {self.result}"

    @classmethod
    def change(cls, left: int, amount: int) -> CalculationStep:
        """Return the step that adds `amount`, which may be negative."""
        return cls(left, "+" if amount > 0 else "-", abs(amount))


class WordProblem(NamedTuple):
    """A word problem: its sentences end with the question, its steps with the answer."""

    sentences: tuple[WorldSentence, ...]
    steps: tuple[CalculationStep, ...]

    @property
    def answer(self) -> int:
        """The number asked for, 1 to 20."""
        return self.steps[-1].result

    def solution(self, language: Language, *, thought: bool = True) -> str:
        """Return the answer in a sentence, after brackets that hold the steps, or nothing."""
        phrase = "the answer is" if language == "en" else "jibu ni"
        steps = [f"{step} ." for step in self.steps] if thought else []
        return " ".join(("(", *steps, ")", phrase, say(self.answer, language), "."))


def _after_changes(words: WordSource, number: int) -> WordProblem:
    owner, item, start = words.name(), words.word("item"), words.number(2, 12)
    sentences = [WorldSentence("has", owner=owner, count=start, item=item)]
    steps: list[CalculationStep] = []
    for _ in range(number):
        change, amount = draw_change(words, owner, item)
        sentences.append(change)
        steps.append(CalculationStep.change(steps[-1].result if steps else start, amount))
    question = WorldSentence("ask_now", owner=owner, item=item)
    return WordProblem((*sentences, question), tuple(steps))


def _total(words: WordSource) -> WordProblem:
    (first, second), item = words.two_names(), words.word("item")
    first_count, second_count = words.number(2, 12), words.number(1, 9)
    sentences = (
        WorldSentence("has", owner=first, count=first_count, item=item),
        WorldSentence("has", owner=second, count=second_count, item=item),
        WorldSentence("ask_total", item=item),
    )
    return WordProblem(sentences, (CalculationStep(first_count, "+", second_count),))


def _comparison(words: WordSource) -> WordProblem:
    (first, second), item = words.two_names(), words.word("item")
    start, count = words.number(2, 12), words.number(1, 9)
    degree = words.rng.choice(("more", "fewer"))
    sentences = (
        WorldSentence("has", owner=first, count=start, item=item),
        WorldSentence("compare", owner=second, count=count, item=item, degree=degree, other=first),
        WorldSentence("ask_count", owner=second, item=item),
    )
    return WordProblem(
        sentences, (CalculationStep.change(start, count if degree == "more" else -count),)
    )


PROBLEMS: Mapping[str, Callable[[WordSource], WordProblem]] = {
    "one": lambda words: _after_changes(words, 1),
    "two": lambda words: _after_changes(words, 2),
    "total": _total,
    "compare": _comparison,
}
"""Kind of word problem -> the function that draws one."""


def draw_problem(words: WordSource, shares: Mapping[str, float]) -> WordProblem:
    """Return a problem all of whose results lie between 1 and 20, by rejection.

    `shares` says how often each kind is drawn, before that.
    """
    while True:
        kind = words.rng.choices(list(shares), list(shares.values()))[0]
        problem = PROBLEMS[kind](words)
        if all(1 <= step.result <= LARGEST_NUMBER for step in problem.steps):
            return problem


def draw_equation(words: WordSource) -> CalculationStep:
    """Return a bare equation with numbers and result between 1 and 20."""
    left, right = words.rng.randint(1, LARGEST_NUMBER), words.rng.randint(1, 9)
    if left > right and words.rng.random() < 0.5:
        return CalculationStep(left, "-", right)
    return CalculationStep(min(left, LARGEST_NUMBER - right), "+", right)
