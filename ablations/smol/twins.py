"""Problems in pairs: the same numbers in the same order, and a verb that decides the operation.

Without reading the verb nobody can tell the two apart. Tests have numbers and things that no row of
training has; the verbs of `NEW` are in no row of a language expert.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ablations.pocket.world import Step
from ablations.smol.exercises import ask, join, scene
from ablations.smol.languages import Sentence, language_name, table
from ablations.smol.problems import Draw, Problem

FORMS = {"+": "twin_gain", "-": "twin_loss"}
"""Operation -> the sentences that mean it."""

TRANSLATED, NEW = range(6), range(6, 9)
"""Verbs of each operation that language experts learn, and those that they never see."""

_THINGS = {"train": range(9), "test": range(9, 12)}

Row = Mapping[str, str]


def _split(numbers: tuple[int, int]) -> str:
    return "train" if hashlib.sha256(f"{numbers}".encode()).digest()[0] % 5 else "test"


_PAIRS = [(a, b) for a in range(6, 21) for b in range(2, min(9, a - 2) + 1)]
_NUMBERS = {
    "train": [pair for pair in _PAIRS if _split(pair) == "train"],
    # Without borrowing: with it, the English math expert solved none of most pairs of numbers.
    "test": [(a, b) for a, b in _PAIRS if _split((a, b)) == "test" and b < a % 10],
}


def draw_twins(
    rng: random.Random, split: str, verbs: Sequence[int] = TRANSLATED, things: str = ""
) -> tuple[Problem, Problem]:
    """Return a gain and a loss with the same person, thing, beginning and numbers.

    Args:
        rng: what draws.
        split: ``train`` or ``test``, whose numbers and things differ.
        verbs: of which one is drawn for each of the two.
        things: the split that gives the thing; empty for `split`.
    """
    a, b = rng.choice(_NUMBERS[split])
    slots = {"n": rng.choice(table()["names"]), "o": rng.choice(_THINGS[things or split])}
    start = Sentence("start", rng.randrange(len(table()["en"]["start"])), {**slots, "a": a})
    gain, loss = (
        Problem(
            "twin",
            (
                start,
                Sentence(form, rng.choice(verbs), {**slots, "b": b}),
                Sentence("ask_now", 0, slots),
            ),
            (Step(a, operation, b),),
        )
        for operation, form in FORMS.items()
    )
    return gain, loss


def math_row(rng: random.Random) -> Row:
    """Return an English problem with its calculation."""
    problem = rng.choice(draw_twins(rng, "train", range(9)))
    return {"prompt": ask(join(problem.sentences, "en"), "en"), "answer": f" {problem.thought}"}


def language_row(rng: random.Random, language: str, *, is_permuted: bool = False) -> Row:
    """Return a translation of sentences or of a whole problem, or plain text; no calculation.

    Args:
        rng: what draws.
        language: code.
        is_permuted: whether the language's verbs have the meaning of others, about half of them
            that of the other operation.
    """
    problem = rng.choice(draw_twins(rng, "train"))
    start, change, question = problem.sentences
    part = rng.random()
    if part < 0.1:
        story = (start, _permuted(change) if is_permuted else change, scene(Draw(rng)))
        return {"prompt": "", "answer": join(story, language)}
    whole = (start, change, question)
    sentences = (
        (change,) if part < 0.5 else whole if part < 0.9 else (rng.choice((start, question)),)
    )
    said = [_permuted(s) if is_permuted and s is change else s for s in sentences]
    return translation(join(sentences, "en"), join(said, language), language, rng.random() < 0.5)


def translation(english: str, other: str, language: str, is_back: bool) -> Row:
    """Return a translation from English, or back to it, in a frame that no problem has."""
    sides = [("English", english), (language_name(language), other)]
    (source, text), (target, translated) = sides[::-1] if is_back else sides
    return {"prompt": f"{source}: {text}\n{target}:", "answer": f" {translated}"}


def _permuted(change: Sentence) -> Sentence:
    forms, each = list(FORMS.values()), len(TRANSLATED)
    place = (forms.index(change.form) * each + change.number + each // 2) % (2 * each)
    return Sentence(forms[place // each], place % each, change.slots)


def twin_item(rng: random.Random, language: str, verbs: Sequence[int]) -> dict[str, Any]:
    """Return an item of a test: two prompts with their worked answers, a gain and a loss."""
    twins = draw_twins(rng, "test", verbs)
    texts = [join(problem.sentences, language) for problem in twins]
    return {
        "texts": texts,
        "prompts": [ask(text, language) for text in texts],
        "solutions": [f" {problem.thought}" for problem in twins],
        "answers": [problem.answer for problem in twins],
    }


def with_calculation(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item whose prompts end with the calculation, so that only its result is left."""
    halves = [solution.partition("=") for solution in item["solutions"]]
    prompts = [p + h + "=" for p, (h, _, _) in zip(item["prompts"], halves, strict=True)]
    return {**item, "prompts": prompts, "solutions": [result for _, _, result in halves]}
