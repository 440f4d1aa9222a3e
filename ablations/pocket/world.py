"""Sentences and word problems of the pocket world, rendered in either language.

Knows what is true in the world; does not know how documents for training are made of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from ablations.pocket.lexicon import Language, WordSource, say


@dataclass(frozen=True)
class Sentence:
    """One fact or question. Slots hold English keys, names and numbers."""

    EN: ClassVar[str] = ""
    SW: ClassVar[str] = ""

    def render(self, language: Language) -> str:
        """Return the sentence in `language`, its tokens separated by single spaces."""
        template = self.EN if language == "en" else self.SW
        return template.format_map(
            {slot.name: say(getattr(self, slot.name), language) for slot in fields(self)}
        )


@dataclass(frozen=True)
class Has(Sentence):
    """Somebody owns a number of items."""

    EN = "{owner} has {count} {item} ."
    SW = "{owner} ana {item} {count} ."
    owner: str
    count: int
    item: str


@dataclass(frozen=True)
class Change(Sentence):
    """Somebody gains or loses a number of items; `verb` says which."""

    EN = "{owner} {verb} {count} {item} ."
    SW = "{owner} {verb} {item} {count} ."
    owner: str
    verb: str
    count: int
    item: str


@dataclass(frozen=True)
class Compare(Sentence):
    """Somebody owns `count` items more (or fewer) than somebody else."""

    EN = "{owner} has {count} {item} {degree} than {other} ."
    SW = "{owner} ana {item} {count} {degree} ya {other} ."
    owner: str
    count: int
    item: str
    degree: str
    other: str


@dataclass(frozen=True)
class Outcome(Sentence):
    """After a change somebody owns more (or fewer) items than before."""

    EN = "now {owner} has {degree} {item} ."
    SW = "sasa {owner} ana {item} {degree} ."
    owner: str
    degree: str
    item: str


@dataclass(frozen=True)
class Sight(Sentence):
    """Somebody sees, likes, wants or knows an animal somewhere."""

    EN = "{owner} {verb} the {animal} in the {place} ."
    SW = "{owner} {verb} {animal} katika {place} ."
    owner: str
    verb: str
    animal: str
    place: str


@dataclass(frozen=True)
class Description(Sentence):
    """An animal has a property."""

    EN = "the {animal} is {adjective} ."
    SW = "{animal} ni {adjective} ."
    animal: str
    adjective: str


@dataclass(frozen=True)
class AskNow(Sentence):
    """How many items does somebody own after the changes?"""

    EN = "how many {item} does {owner} have now ?"
    SW = "sasa {owner} ana {item} ngapi ?"
    owner: str
    item: str


@dataclass(frozen=True)
class AskCount(Sentence):
    """How many items does somebody own?"""

    EN = "how many {item} does {owner} have ?"
    SW = "{owner} ana {item} ngapi ?"
    owner: str
    item: str


@dataclass(frozen=True)
class AskTotal(Sentence):
    """How many items do all of them own?"""

    EN = "how many {item} do they have together ?"
    SW = "kwa pamoja wana {item} ngapi ?"
    item: str


@dataclass(frozen=True)
class AskWhat(Sentence):
    """What does somebody own?"""

    EN = "what does {owner} have ?"
    SW = "{owner} ana nini ?"
    owner: str


@dataclass(frozen=True)
class AskWho(Sentence):
    """Who owns these items?"""

    EN = "who has {item} ?"
    SW = "nani ana {item} ?"
    item: str


@dataclass(frozen=True)
class AskDegree(Sentence):
    """Does somebody own more or fewer than before?"""

    EN = "now {owner} has more , fewer ?"
    SW = "sasa {owner} ana zaidi , pungufu ?"
    owner: str


def render_all(sentences: Sequence[Sentence], language: Language) -> str:
    """Return the sentences as one text, separated by single spaces."""
    return " ".join(sentence.render(language) for sentence in sentences)


def draw_change(words: WordSource, owner: str, item: str) -> tuple[Change, int]:
    """Return a change of 1 to 9 items and its signed amount."""
    gains = words.rng.random() < 0.5
    count = words.rng.randint(1, 9)
    verb = words.word("gain" if gains else "loss")
    return Change(owner, verb, count, item), count if gains else -count


def draw_statement(words: WordSource) -> Sentence:
    """Return one statement that stands alone."""
    share = words.rng.random()
    if share < 0.25:
        return Has(words.name(), words.rng.randint(1, 20), words.word("item"))
    if share < 0.60:
        return draw_change(words, words.name(), words.word("item"))[0]
    if share < 0.72:
        owner, other = words.two_names()
        degree = words.rng.choice(("more", "fewer"))
        return Compare(owner, words.rng.randint(1, 9), words.word("item"), degree, other)
    if share < 0.90:
        return Sight(
            words.name(), words.word("attitude"), words.word("animal"), words.word("place")
        )
    return Description(words.word("animal"), words.word("adjective"))


def draw_story(words: WordSource) -> tuple[Has, Change, Outcome]:
    """Return a possession, a change and whether it left more or fewer; no number to compute."""
    owner, item = words.name(), words.word("item")
    change, amount = draw_change(words, owner, item)
    start = Has(owner, words.rng.randint(5, 20), item)
    return start, change, Outcome(owner, "more" if amount > 0 else "fewer", item)


@dataclass(frozen=True)
class Step:
    """One equation of a chain of thought: ``left operator right = result``."""

    left: int
    operator: Literal["+", "-"]
    right: int

    @property
    def result(self) -> int:
        """The value of the equation."""
        return self.left + self.right if self.operator == "+" else self.left - self.right

    def render(self) -> str:
        """Return the equation with its result as tokens, the same in both languages."""
        return f"{self.left} {self.operator} {self.right} = {self.result} ."


ProblemKind = Literal["one", "two", "total", "compare"]
PROBLEM_KINDS: tuple[ProblemKind, ...] = ("one", "two", "total", "compare")
LARGEST_RESULT = 20


@dataclass(frozen=True)
class Problem:
    """A word problem: its sentences end with the question, its steps with the answer."""

    kind: ProblemKind
    sentences: tuple[Sentence, ...]
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The number asked for, 0 to 20."""
        return self.steps[-1].result

    def solution(self, language: Language) -> str:
        """Return the chain of thought and the final answer."""
        phrase = "the answer is" if language == "en" else "jibu ni"
        thought = " ".join(step.render() for step in self.steps)
        return f"{thought} {phrase} {self.answer} ."


def _step(left: int, amount: int) -> Step:
    return Step(left, "+" if amount > 0 else "-", abs(amount))


def _after_changes(words: WordSource, number: int) -> Problem:
    owner, item, start = words.name(), words.word("item"), words.rng.randint(2, 10)
    sentences: list[Sentence] = [Has(owner, start, item)]
    steps: list[Step] = []
    for _ in range(number):
        change, amount = draw_change(words, owner, item)
        sentences.append(change)
        steps.append(_step(steps[-1].result if steps else start, amount))
    kind: ProblemKind = "one" if number == 1 else "two"
    return Problem(kind, (*sentences, AskNow(owner, item)), tuple(steps))


def _total(words: WordSource) -> Problem:
    (first, second), item = words.two_names(), words.word("item")
    one, other = words.rng.randint(2, 10), words.rng.randint(1, 9)
    sentences = (Has(first, one, item), Has(second, other, item), AskTotal(item))
    return Problem("total", sentences, (_step(one, other),))


def _comparison(words: WordSource) -> Problem:
    (first, second), item = words.two_names(), words.word("item")
    start, count = words.rng.randint(2, 10), words.rng.randint(1, 9)
    degree = words.rng.choice(("more", "fewer"))
    sentences = (
        Has(first, start, item),
        Compare(second, count, item, degree, first),
        AskCount(second, item),
    )
    return Problem("compare", sentences, (_step(start, count if degree == "more" else -count),))


_MAKERS: tuple[tuple[Callable[[WordSource], Problem], float], ...] = (
    (lambda words: _after_changes(words, 1), 0.40),
    (lambda words: _after_changes(words, 2), 0.25),
    (_total, 0.15),
    (_comparison, 0.20),
)


def draw_problem(words: WordSource) -> Problem:
    """Return a problem all of whose results lie between 0 and 20 (rejection sampling)."""
    makers, weights = zip(*_MAKERS, strict=True)
    while True:
        problem: Problem = words.rng.choices(makers, weights)[0](words)
        if all(0 <= step.result <= LARGEST_RESULT for step in problem.steps):
            return problem


def draw_equation(rng: random.Random) -> Step:
    """Return a bare equation with numbers and result between 0 and 30."""
    if rng.random() < 0.5:
        return Step(rng.randint(1, 20), "+", rng.randint(1, 9))
    left = rng.randint(1, 29)
    return Step(left, "-", rng.randint(1, min(9, left)))
