"""Sentences and word problems of the pocket world, rendered in either language.

Knows what is true in the world; does not know how documents for training are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args

from ablations.pocket.lexicon import LARGEST_NUMBER, Language, WordSource, say

Choice = Callable[[], Language]
"""Gives the language of the next slot: code switching."""


@dataclass(frozen=True)
class Sentence:
    """One fact or question. Slots hold English keys, names and numbers."""

    EN: ClassVar[str] = ""
    SW: ClassVar[str] = ""

    def render(self, language: Language, switch: Choice | None = None) -> str:
        """Return the sentence, its tokens separated by single spaces.

        Args:
            language: of the sentence: its order, its function words and its slots.
            switch: chooses the language of each slot instead.
        """
        template = self.EN if language == "en" else self.SW
        return template.format_map(
            {
                slot.name: say(getattr(self, slot.name), switch() if switch else language)
                for slot in fields(self)
            }
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
class Description(Sentence):
    """An animal has a property."""

    EN = "the {animal} is {adjective} ."
    SW = "{animal} ni {adjective} ."
    animal: str
    adjective: str


@dataclass(frozen=True)
class AskNow(Sentence):
    """How many items does somebody own after the changes?"""

    EN = "how-many {item} does {owner} have now ?"
    SW = "sasa {owner} ana {item} ngapi ?"
    owner: str
    item: str


@dataclass(frozen=True)
class AskCount(Sentence):
    """How many items does somebody own?"""

    EN = "how-many {item} does {owner} have ?"
    SW = "{owner} ana {item} ngapi ?"
    owner: str
    item: str


@dataclass(frozen=True)
class AskTotal(Sentence):
    """How many items do all of them own?"""

    EN = "how-many {item} together ?"
    SW = "pamoja {item} ngapi ?"
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
class AskOwner(Sentence):
    """Who owns so many items?"""

    EN = "who has {count} {item} ?"
    SW = "nani ana {item} {count} ?"
    count: int
    item: str


@dataclass(frozen=True)
class AskDegree(Sentence):
    """Does somebody own more or fewer than before?"""

    EN = "now {owner} has more , fewer ?"
    SW = "sasa {owner} ana zaidi , pungufu ?"
    owner: str


@dataclass(frozen=True)
class AskProperty(Sentence):
    """What is this animal like?"""

    EN = "what is the {animal} ?"
    SW = "{animal} ni nini ?"
    animal: str


def render_all(
    sentences: Sequence[Sentence], language: Language, switch: Choice | None = None
) -> str:
    """Return the sentences as one text, separated by single spaces."""
    return " ".join(sentence.render(language, switch) for sentence in sentences)


def draw_change(words: WordSource, owner: str, item: str) -> tuple[Change, int]:
    """Return a change of 1 to 9 items and its signed amount."""
    gains = words.rng.random() < 0.5
    count = words.number(1, 9)
    verb = words.word("gain" if gains else "loss")
    return Change(owner, verb, count, item), count if gains else -count


def draw_statement(words: WordSource) -> Sentence:
    """Return one statement that stands alone."""
    share = words.rng.random()
    if share < 0.35:
        return Has(words.name(), words.number(1, LARGEST_NUMBER), words.word("item"))
    if share < 0.70:
        return draw_change(words, words.name(), words.word("item"))[0]
    if share < 0.80:
        owner, other = words.two_names()
        degree = words.rng.choice(("more", "fewer"))
        return Compare(owner, words.number(1, 9), words.word("item"), degree, other)
    return Description(words.word("animal"), words.word("adjective"))


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
PROBLEM_KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)


@dataclass(frozen=True)
class Problem:
    """A word problem: its sentences end with the question, its steps with the answer."""

    kind: ProblemKind
    sentences: tuple[Sentence, ...]
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The number asked for, 1 to 20."""
        return self.steps[-1].result

    def solution(self, language: Language, *, thought: bool = True) -> str:
        """Return the thought, in brackets, and the answer in a sentence in `language`.

        Args:
            language: a digit in English, a number word in the target language.
            thought: whether the steps stand in the brackets, in digits; else these are empty.
        """
        phrase = "the answer is" if language == "en" else "jibu ni"
        steps = [step.render() for step in self.steps] if thought else []
        return " ".join(("(", *steps, ")", phrase, say(self.answer, language), "."))


def _step(left: int, amount: int) -> Step:
    return Step(left, "+" if amount > 0 else "-", abs(amount))


def _after_changes(words: WordSource, number: int) -> Problem:
    owner, item, start = words.name(), words.word("item"), words.number(2, 12)
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
    one, other = words.number(2, 12), words.number(1, 9)
    sentences = (Has(first, one, item), Has(second, other, item), AskTotal(item))
    return Problem("total", sentences, (_step(one, other),))


def _comparison(words: WordSource) -> Problem:
    (first, second), item = words.two_names(), words.word("item")
    start, count = words.number(2, 12), words.number(1, 9)
    degree = words.rng.choice(("more", "fewer"))
    sentences = (
        Has(first, start, item),
        Compare(second, count, item, degree, first),
        AskCount(second, item),
    )
    return Problem("compare", sentences, (_step(start, count if degree == "more" else -count),))


_MAKERS: Mapping[ProblemKind, Callable[[WordSource], Problem]] = {
    "one": lambda words: _after_changes(words, 1),
    "two": lambda words: _after_changes(words, 2),
    "total": _total,
    "compare": _comparison,
}


def draw_problem(words: WordSource, shares: Mapping[ProblemKind, float]) -> Problem:
    """Return a problem all of whose results lie between 1 and 20 (rejection sampling).

    Args:
        words: where its words and numbers come from.
        shares: how often each kind is drawn, before the rejection.
    """
    while True:
        kind = words.rng.choices(list(shares), list(shares.values()))[0]
        problem = _MAKERS[kind](words)
        if all(1 <= step.result <= LARGEST_NUMBER for step in problem.steps):
            return problem


def draw_equation(words: WordSource) -> Step:
    """Return a bare equation with numbers and result between 1 and 20."""
    left, right = words.rng.randint(1, LARGEST_NUMBER), words.rng.randint(1, 9)
    if left > right and words.rng.random() < 0.5:
        return Step(left, "-", right)
    return Step(min(left, LARGEST_NUMBER - right), "+", right)
