"""Prompts and answers in a language: problems, translation, comprehension, plain text.

The law of this file, tested on thousands of rows: no row of a language expert holds a calculation,
and none asks a question whose answer must be calculated, but for questions to be translated.
Every exercise belongs to training or to the test by its content, whatever its language and names.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ablations.smol.languages import Sentence, language_name, table
from ablations.smol.problems import Draw, draw_problem


class Exercise(NamedTuple):
    """One row."""

    prompt: str
    """Ends without a space; ``""`` for plain text."""

    solution: str
    """The whole answer, one line, as an expert learns it."""

    answer: str
    """What is scored: a number, a name, a thing, or the whole translation."""

    key: str
    """The content that decides the split."""


Make = Callable[[random.Random, str], Exercise]


def math(rng: random.Random, language: str) -> Exercise:
    """Return a word problem, solved step by step; its last words are the answer."""
    problem = draw_problem(rng)
    words, text = table()[language], join(problem.sentences, language)
    solution = f"{problem.thought} {words['phrase']} {problem.answer}."
    return Exercise(ask(text, language), solution, str(problem.answer), problem.key)


def comprehension(rng: random.Random, language: str) -> Exercise:
    """Return a short text with a question that it answers; the answer is a whole sentence."""
    text, question, sentence, answer = rng.choice(_QUESTIONS)(Draw(rng), language)
    prompt = ask(join((*text, question), language), language)
    solution = f"{sentence.render(language)} {table()[language]['phrase']} {answer}."
    return Exercise(prompt, solution, answer, _key(text, question))


def plain_text(rng: random.Random, language: str) -> Exercise:
    """Return three to five sentences without a question, for continued pretraining."""
    draw = Draw(rng)
    text: list[Sentence] = []
    wanted = rng.randint(3, 5)
    while len(text) < wanted:
        text += _story(draw) if rng.random() < 0.4 else (scene(draw),)
    said = join(text, language)
    return Exercise("", said, said, _key(text))


def split_of(key: str) -> str:
    """Return the split of a content: a quarter of all is for tests."""
    return "test" if hashlib.sha256(key.encode()).digest()[0] < 64 else "train"


def draw_rows(make: Make, language: str, split: str, number: int, seed: str) -> list[Exercise]:
    """Return `number` exercises of one split with different prompts.

    Args:
        make: draws one exercise.
        language: code.
        split: which contents.
        number: rows.
        seed: the same seed draws the same contents in every language.
    """
    rng, rows = random.Random(f"{split}/{seed}"), dict[str, Exercise]()
    while len(rows) < number:
        exercise = make(rng, language)
        if split_of(exercise.key) == split:
            rows.setdefault(exercise.prompt or exercise.solution, exercise)
    return list(rows.values())


def join(sentences: Sequence[Sentence], language: str) -> str:
    """Return sentences as one text."""
    return " ".join(sentence.render(language) for sentence in sentences)


def ask(text: str, language: str) -> str:
    """Return the prompt of a problem."""
    words = table()[language]
    return f"{words['question']} {text}\n{words['answer']}"


def _key(text: tuple[Sentence, ...] | list[Sentence], *more: Sentence) -> str:
    """Return the content of sentences; names do not count."""
    return " ".join(
        f"{each.form}/{'/'.join(str(v) for k, v in sorted(each.slots.items()) if k not in 'nm')}"
        for each in (*text, *more)
    )


def scene(draw: Draw) -> Sentence:
    """Return who does what, where and when."""
    slots = {slot: draw.index(form) for slot, form in _SCENE.items()}
    return draw.sentence("scene", **slots)


_SCENE = {"who": "subjects", "does": "verbs", "where": "places", "when": "times"}


def _story(draw: Draw) -> tuple[Sentence, Sentence]:
    """Return a possession and a change."""
    slots = draw.who_and_what()
    start = draw.rng.randint(6, 40)
    return draw.sentence("start", **slots, a=start), draw.change(start, **slots)[0]


def _translation(rng: random.Random, source: str, target: str) -> Exercise:
    draw = Draw(rng)
    text: tuple[Sentence, ...]
    if rng.random() < 0.25:
        text = (scene(draw),)
    elif rng.random() < 0.5:
        text = _story(draw)
    else:  # one sentence of a problem, which may be its question
        text = (rng.choice(draw_problem(rng).sentences),)
    name, said = language_name(target), join(text, target)
    prompt = f"Translate to {name}: {join(text, source)}\n{name}:"
    return Exercise(prompt, said, said, _key(text))


Question = tuple[tuple[Sentence, ...], Sentence, Sentence, str]
"""Text, question, the sentence that answers, and the answer in a few words."""


def _of_two_owners(
    form: str, answer: Callable[[Mapping[str, Any], Any], Any]
) -> Callable[[Draw, str], Question]:
    """Return what asks about one of two owners; `answer` takes the slots and a language's words."""

    def make(draw: Draw, language: str) -> Question:
        first, second = draw.rng.sample(range(len(table()["en"]["things"])), 2)
        slots = draw.who_and_what() | {"o": first, "p": second}
        slots |= {"a": draw.rng.randint(2, 40), "b": draw.rng.randint(2, 40)}
        text = (Sentence("start", draw.index("start"), slots), Sentence("has", 0, slots))
        if draw.rng.random() >= 0.5:
            text = text[::-1]
        said = str(answer(slots, table()[language]))
        return text, Sentence(form, 0, slots), Sentence("has", 0, slots), said

    return make


def _at_first(draw: Draw, language: str) -> Question:
    text = _story(draw)
    slots = text[0].slots
    answer = Sentence("start", 0, slots)
    return text, Sentence("ask_first", 0, slots), answer, str(slots["a"])


def _degree(draw: Draw, language: str) -> Question:
    text = _story(draw)
    number = 0 if text[1].form == "gain" else 1
    answer = Sentence("degree", number, text[0].slots)
    question = Sentence("ask_degree", 0, text[0].slots)
    return text, question, answer, table()[language]["degrees"][number]


def _who(draw: Draw, language: str) -> Question:
    one, other = scene(draw), scene(draw)
    # They differ in who and in where, so that there is one answer.
    subjects, places = (len(table()["en"][form]) for form in ("subjects", "places"))
    moved = {
        "who": (int(one.slots["who"]) + draw.rng.randrange(1, subjects)) % subjects,
        "where": (int(one.slots["where"]) + draw.rng.randrange(1, places)) % places,
    }
    other = Sentence("scene", other.number, {**other.slots, **moved})
    asked = draw.rng.choice((one, other))
    subject = table()[language]["subjects"][asked.slots["who"]]
    answer = Sentence("scene", 0, asked.slots)
    return (one, other), Sentence("ask_who", 0, asked.slots), answer, subject


_QUESTIONS = (
    _of_two_owners("ask_who_has", lambda slots, words: slots["m"]),
    _of_two_owners("ask_what", lambda slots, words: words["things"][slots["p"]][0]),
    _of_two_owners("ask_how_p", lambda slots, words: slots["b"]),
    _at_first,
    _degree,
    _who,
)

FAMILIES: dict[str, Make] = {
    "math": math,
    "translate": lambda rng, language: _translation(rng, "en", language),
    "translate_back": lambda rng, language: _translation(rng, language, "en"),
    "comprehension": comprehension,
    "text": plain_text,
}
"""Family of exercises -> what draws one."""
