"""Sentences and word problems of the pocket world, rendered in either language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
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


def _form(name: str, slots: str, english: str, swahili: str) -> Callable[..., Sentence]:
    """Return a kind of sentence: its slots in the order of its arguments, and how it reads."""
    texts = {"EN": english, "SW": swahili}
    return make_dataclass(name, slots.split(), bases=(Sentence,), frozen=True, namespace=texts)


# In this order, which is that of the tokens.
Has = _form(
    "Has", "owner count item", "{owner} has {count} {item} .", "{owner} ana {item} {count} ."
)
Change = _form(
    "Change",
    "owner verb count item",
    "{owner} {verb} {count} {item} .",
    "{owner} {verb} {item} {count} .",
)
Compare = _form(
    "Compare",
    "owner count item degree other",
    "{owner} has {count} {item} {degree} than {other} .",
    "{owner} ana {item} {count} {degree} ya {other} .",
)
Description = _form(
    "Description", "animal adjective", "the {animal} is {adjective} .", "{animal} ni {adjective} ."
)
AskNow = _form(
    "AskNow",
    "owner item",
    "how-many {item} does {owner} have now ?",
    "sasa {owner} ana {item} ngapi ?",
)
AskCount = _form(
    "AskCount", "owner item", "how-many {item} does {owner} have ?", "{owner} ana {item} ngapi ?"
)
AskTotal = _form("AskTotal", "item", "how-many {item} together ?", "pamoja {item} ngapi ?")
AskWhat = _form("AskWhat", "owner", "what does {owner} have ?", "{owner} ana nini ?")
AskWho = _form("AskWho", "item", "who has {item} ?", "nani ana {item} ?")
AskOwner = _form("AskOwner", "count item", "who has {count} {item} ?", "nani ana {item} {count} ?")
AskDegree = _form(
    "AskDegree", "owner", "now {owner} has more , fewer ?", "sasa {owner} ana zaidi , pungufu ?"
)
AskProperty = _form("AskProperty", "animal", "what is the {animal} ?", "{animal} ni nini ?")


def render_all(
    sentences: Sequence[Sentence], language: Language, switch: Choice | None = None
) -> str:
    """Return the sentences as one text, separated by single spaces."""
    return " ".join(sentence.render(language, switch) for sentence in sentences)


def draw_change(words: WordSource, owner: str, item: str) -> tuple[Sentence, int]:
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
