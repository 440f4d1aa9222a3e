"""The training streams: which exercises each model sees, and how often.

The law of this file, tested on thousands of samples: no document of any stream is a
target-language word problem, solved or in a question's frame, and no equation stands in a
document that holds a Swahili word. Does not know of tokens, batches or models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from ablations.pocket import exercises as ex
from ablations.pocket.exercises import Exercise
from ablations.pocket.lexicon import TRANSLATION, Language, WordSource
from ablations.pocket.world import draw_statement, draw_story, render_all

Document = tuple[Exercise, ...]
"""Exercises that stand behind one another in one context (two or three: few-shot practice)."""
Stream = Iterator[Document]
Maker = Callable[[], Exercise]

_FUNCTION_WORDS = ("has ana", "now sasa", "than ya", "is ni", "who nani", "what nini", "in katika")
_TO_SWAHILI = {**TRANSLATION, **dict(pair.split() for pair in _FUNCTION_WORDS)}
_SWITCHABLE: dict[Language, dict[str, str]] = {
    "en": _TO_SWAHILI,
    "sw": {swahili: english for english, swahili in _TO_SWAHILI.items()},
}
"""What code switching may replace. No word that belongs to how-many questions is in it."""

MIXES: Mapping[str, Mapping[str, float]] = {
    "base": {
        "copying": 0.06,
        "equations": 0.08,
        "english statements": 0.03,
        "english stories": 0.04,
        "english facts": 0.08,
        "english practice": 0.04,
        "english comprehension": 0.08,
        "english simple math": 0.10,
        "swahili statements": 0.04,
        "swahili stories": 0.02,
        "swahili facts": 0.06,
        "swahili practice": 0.03,
        "swahili comprehension": 0.03,
        "translation": 0.15,
        "code switching": 0.16,
    },
    "copying": {"copying": 0.7, "equations": 0.3},
    "language": {
        "translation": 0.60,
        "swahili facts": 0.28,
        "swahili repetition": 0.07,
        "swahili count": 0.05,
    },
    "task": {"english math": 1.0},
}
"""Stream -> shares of its documents by kind. ``copying`` is what the base learns first, alone.

The base's English math is one-step only and not frequent: without any, the experts' deltas grow so
large that merges of them collapse; with much of it (18 %, all kinds) the base solves all English
problems, the math expert learns nothing, and nothing carries over to Swahili.
"""


def _plain(text: str) -> Exercise:
    return Exercise("", text, text)


def _code_switched(words: WordSource) -> Exercise:
    """Return a text of either language, never arithmetic, with words of the other one in it.

    It is statements, a story, or a question. The word order stays that of the first language,
    so numbers are met before and after the nouns of both.
    """
    rng, kind = words.rng, words.rng.random()
    languages: tuple[Language, Language] = ("en", "sw")
    language = rng.choice(languages)
    if kind < 0.3:
        statements = [draw_statement(words) for _ in range(rng.randint(1, 2))]
        return _plain(_switch(render_all(statements, language), language, rng))
    if kind < 0.5:
        return _plain(_switch(render_all(draw_story(words), language), language, rng))
    make = ex.facts if kind < 0.75 else ex.comprehension
    exercise = ex.draw_from("train", lambda: make(words, language))
    return Exercise(_switch(exercise.prompt, language, rng), exercise.answer, exercise.key)


def _switch(text: str, language: Language, rng: random.Random) -> str:
    """Return `text` with 30, 50 or 70 % of its translatable words in the other language."""
    share = rng.choice((0.3, 0.5, 0.7))
    return " ".join(
        _SWITCHABLE[language].get(word, word) if rng.random() < share else word
        for word in text.split()
    )


def _held_in(make: Maker) -> Maker:
    return lambda: ex.draw_from("train", make)


def _language_makers(words: WordSource, language: Language) -> dict[str, Maker]:
    rng = words.rng
    name = "english" if language == "en" else "swahili"
    practice = (ex.repetition, ex.counting)
    return {
        f"{name} statements": lambda: _plain(
            render_all([draw_statement(words) for _ in range(rng.randint(1, 3))], language)
        ),
        f"{name} stories": lambda: _plain(render_all(draw_story(words), language)),
        f"{name} facts": _held_in(lambda: ex.facts(words, language)),
        f"{name} comprehension": _held_in(lambda: ex.comprehension(words, language)),
        f"{name} repetition": lambda: ex.repetition(words, language),
        f"{name} count": lambda: ex.counting(words, language),
        f"{name} practice": lambda: rng.choice(practice)(words, language),
    }


def _translation_maker(words: WordSource) -> Maker:
    directions: tuple[Language, Language] = ("en", "sw")

    def make() -> Exercise:
        source = words.rng.choice(directions)
        if words.rng.random() < 0.15:
            return ex.word_translation(words, source)
        return ex.draw_from("train", lambda: ex.translation(words, source))

    return make


def _makers(rng: random.Random, swahili_zipf: float) -> dict[str, Maker]:
    """Return a maker for every kind; Swahili words (also in translation) follow Zipf's law."""
    english, swahili = WordSource(rng), WordSource(rng, swahili_zipf)
    return {
        **_language_makers(english, "en"),
        **_language_makers(swahili, "sw"),
        "copying": lambda: ex.copying(english),
        "equations": lambda: ex.equations(english),
        "english simple math": _held_in(lambda: ex.math(english, "en", ("one", "total"))),
        "english math": _held_in(lambda: ex.math(english, "en")),
        "translation": _translation_maker(swahili),
        "code switching": lambda: _code_switched(swahili),
    }


def draw_documents(
    name: str, seed: int, *, swahili_zipf: float = 0.0, few_shot_share: float = 0.0
) -> Stream:
    """Yield the documents of a stream without end.

    Args:
        name: of the stream, in `MIXES`.
        seed: seed of every draw.
        swahili_zipf: exponent of the frequencies of words in Swahili documents, >= 0.
        few_shot_share: share of documents that hold two or three exercises of one kind.
    """
    rng = random.Random(seed)
    makers = _makers(rng, swahili_zipf)
    kinds, shares = list(MIXES[name]), list(MIXES[name].values())
    while True:
        make = makers[rng.choices(kinds, shares)[0]]
        repeats = rng.choice((2, 3)) if rng.random() < few_shot_share else 1
        yield tuple(make() for _ in range(repeats))
