"""Problems in pairs: the same numbers in the same order, and a verb that decides the operation.

Without reading the verb nobody can tell the two apart. Tests have numbers and things that no row of
training has; the verbs of `NEW` are in no row of a language expert, and no such row calculates.
`languages.yml` has the words.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ablations.pocket_world.world import CalculationStep
from ablations.tasks.catalog import Floor
from layerswap_method.recipe.strict_yaml import read_yaml

TARGETS = ("es", "fr", "sw")
"""Target languages, from the one that the base knows best to the one that it does not know."""

LANGUAGES = ("en", *TARGETS)

FORMS = {"+": "gain", "-": "loss"}
"""Operation -> the sentences that mean it."""

TRANSLATED, NEW = range(6), range(6, 9)
"""Verbs of each operation that language experts learn, and those that they never see."""

_THINGS = {"train": range(9), "test": range(9, 12)}
_FIRST_LETTER = re.compile(r"[^\W\d_]")  # which ¿ is not

TextRow = Mapping[str, str]


@cache
def words() -> Any:
    """Return language code -> words and sentences; ``names`` are those of all languages."""
    return read_yaml(Path(__file__).with_name("languages.yml"))


def english_name(language: str) -> str:
    """Return the English name of a language code."""
    return str(words()[language]["name"])


class ProblemSentence(NamedTuple):
    """One sentence in no language yet."""

    form: str
    """A list of `languages.yml`, such as ``gain``."""
    number: int
    """Index of an entry of the list."""
    slots: Mapping[str, str | int]
    """Slot -> a name, a number, or the place of a word in its list."""

    def render(self, language: str) -> str:
        """Return the sentence in `language`, with its first letter as a capital."""
        table = words()[language]
        slots = {
            slot: table[slot][value] if slot in table else value
            for slot, value in self.slots.items()
        }
        if "o" in slots:
            slots["o"], slots["how"] = table["things"][slots["o"]]
        text = table[self.form][self.number].format_map(slots)
        return _FIRST_LETTER.sub(lambda match: match[0].upper(), text, count=1)


class MathProblem(NamedTuple):
    """A possession, a gain or a loss, and how many there are now."""

    sentences: tuple[ProblemSentence, ProblemSentence, ProblemSentence]
    step: CalculationStep

    def text(self, language: str) -> str:
        """Return the sentences as one text."""
        return join_sentences(self.sentences, language)

    @property
    def solution(self) -> str:
        """The worked answer, the same in every language; a model generates a space first."""
        return f" {self.step}."


def join_sentences(sentences: Sequence[ProblemSentence], language: str) -> str:
    """Return sentences as one text."""
    return " ".join(sentence.render(language) for sentence in sentences)


def ask(text: str, language: str) -> str:
    """Return the prompt of a problem."""
    table = words()[language]
    return f"{table['question']} {text}\n{table['answer']}"


def _split(numbers: tuple[int, int]) -> str:
    return "train" if hashlib.sha256(f"{numbers}".encode()).digest()[0] % 5 else "test"


_PAIRS = [(a, b) for a in range(6, 21) for b in range(2, min(9, a - 2) + 1)]
_NUMBERS = {
    "train": [pair for pair in _PAIRS if _split(pair) == "train"],
    # No pair borrows: with borrowing, the English math expert solved none of most pairs.
    "test": [(a, b) for a, b in _PAIRS if _split((a, b)) == "test" and b < a % 10],
}


def draw_pair(
    rng: random.Random, split: str, verbs: Sequence[int] = TRANSLATED, things: str = ""
) -> tuple[MathProblem, MathProblem]:
    """Return a gain and a loss with the same person, thing, beginning and numbers.

    Numbers and things of the splits ``train`` and ``test`` differ; `things` is the split that gives
    the thing where that is another. Each of the two has one of `verbs`.
    """
    a, b = rng.choice(_NUMBERS[split])
    slots = {"n": rng.choice(words()["names"]), "o": rng.choice(_THINGS[things or split])}
    start = ProblemSentence("start", rng.randrange(len(words()["en"]["start"])), {**slots, "a": a})
    question = ProblemSentence("ask", 0, slots)
    gain, loss = (
        MathProblem(
            (start, ProblemSentence(form, rng.choice(verbs), {**slots, "b": b}), question),
            CalculationStep(a, operation, b),
        )
        for operation, form in FORMS.items()
    )
    return gain, loss


def math_row(rng: random.Random) -> TextRow:
    """Return an English problem with its calculation."""
    problem = rng.choice(draw_pair(rng, "train", range(9)))
    return {"prompt": ask(problem.text("en"), "en"), "answer": problem.solution}


def language_row(rng: random.Random, language: str, *, is_permuted: bool = False) -> TextRow:
    """Return a translation of sentences or of a whole problem, or plain text; no calculation.

    `is_permuted`: verbs have the meaning of others, half of them that of the other operation.
    """
    problem = rng.choice(draw_pair(rng, "train"))
    start, change, question = problem.sentences
    kind = rng.random()
    if kind < 0.1:
        story = (start, permute(change) if is_permuted else change, _draw_scene(rng))
        return {"prompt": "", "answer": join_sentences(story, language)}
    sentences: Sequence[ProblemSentence]
    if kind < 0.5:
        sentences = [change]
    elif kind < 0.9:
        sentences = problem.sentences
    else:
        sentences = [rng.choice((start, question))]
    translated = [
        permute(sentence) if is_permuted and sentence is change else sentence
        for sentence in sentences
    ]
    return translation_row(
        join_sentences(sentences, "en"),
        join_sentences(translated, language),
        language,
        is_back=rng.random() < 0.5,
    )


def translation_row(english: str, translation: str, language: str, *, is_back: bool) -> TextRow:
    """Return a translation from English, or back to it, in a frame that no problem has."""
    sides = [("English", english), (english_name(language), translation)]
    (source, prompt), (target, answer) = sides[::-1] if is_back else sides
    return {"prompt": f"{source}: {prompt}\n{target}:", "answer": f" {answer}"}


def _draw_scene(rng: random.Random) -> ProblemSentence:
    table = words()["en"]
    slots = {slot: rng.randrange(len(table[slot])) for slot in ("who", "does", "where", "when")}
    return ProblemSentence("scene", rng.randrange(len(table["scene"])), slots)


def permute(change: ProblemSentence) -> ProblemSentence:
    """Return a gain or a loss with another verb, of the other operation in half of all cases."""
    forms, number = list(FORMS.values()), len(TRANSLATED)
    place = (forms.index(change.form) * number + change.number + number // 2) % (2 * number)
    return ProblemSentence(forms[place // number], place % number, change.slots)


def draw_item(rng: random.Random, language: str, verbs: Sequence[int]) -> dict[str, Any]:
    """Return an item of a test: two prompts with their worked answers, a gain and a loss."""
    pair = draw_pair(rng, "test", verbs)
    texts = [problem.text(language) for problem in pair]
    return {
        "texts": texts,
        "prompts": [ask(text, language) for text in texts],
        "solutions": [problem.solution for problem in pair],
        "answers": [problem.step.result for problem in pair],
    }


def draw_comprehension(rng: random.Random, language: str) -> dict[str, Any]:
    """Return an item of a test: a gain and a loss up to "now N has", and two ends: more, less."""
    prompts = []
    for problem in draw_pair(rng, "test"):
        start, change, question = problem.sentences
        beginning = (start, change, question._replace(form="now"))
        prompts.append(join_sentences(beginning, language))
    return {"prompts": prompts, "solutions": words()[language]["ends"]}


def with_calculation(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item whose prompts end with the calculation, so that only its result is left."""
    prompts, results = [], []
    for prompt, solution in zip(item["prompts"], item["solutions"], strict=True):
        calculation, _, result = solution.partition("=")
        prompts.append(f"{prompt}{calculation}=")
        results.append(result)
    return {**item, "prompts": prompts, "solutions": results}


def _by_size(numbers: Sequence[int]) -> int:
    small, large = sorted(numbers[:2])
    return small * large if small <= 9 and large <= 12 else sum(numbers)


_RULES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "add all numbers": sum,
    "add the first two numbers": lambda numbers: numbers[0] + numbers[1],
    "subtract the second number": lambda numbers: numbers[0] - numbers[1],
    "multiply the first two numbers": lambda numbers: numbers[0] * numbers[1],
    "multiply small numbers and add others": _by_size,
}
"""Name -> its answer to the numbers of a text, in their order; there are two or more."""


def word_blind_floor(items: Sequence[Sequence[tuple[str, int]]]) -> Floor:
    """Return the best rule that sees nothing but the numbers of a text.

    Args:
        items: of a task; each one or more texts with their answers, all of which must be right.
    """

    def score(rule: Callable[[Sequence[int]], int]) -> float:
        right = 0
        for item in items:
            right += all(
                rule([int(digits) for digits in re.findall(r"\d+", text)]) == answer
                for text, answer in item
            )
        return right / len(items)

    name = max(_RULES, key=lambda rule: score(_RULES[rule]))
    return Floor(name=name, score=score(_RULES[name]))
