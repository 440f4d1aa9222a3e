"""The training streams: which exercises each model sees, and how often.

The rule of this file, tested on thousands of samples: only the base sees arithmetic with words
of the target language. Its problems wholly in that language are made of common words alone, and
rare words stand in problems only where English words stand, too. The experts see none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ablations.pocket_world import exercises as ex
from ablations.pocket_world.exercises import Exercise
from ablations.pocket_world.world import (
    RARE,
    TRANSLATION,
    Language,
    LanguageChoice,
    WordSource,
    draw_statement,
    render_all,
)
from layerswap_method.recipe.strict_yaml import read_yaml

Maker = Callable[[], Exercise]

MILD_KINDS: Mapping[str, float] = {"one": 0.4, "two": 0.2, "total": 0.2, "compare": 0.2}
THOUGHT_SHARE = 0.4
"""Share of the base's word problems that are solved step by step; the math expert's all are."""

MIXES: Mapping[str, Mapping[str, float]] = read_yaml(Path(__file__).with_name("streams.yml"))
"""Stream -> shares of its documents by kind."""

_RARE_TARGETS = frozenset(TRANSLATION[word] for word in RARE)


def _makers(rng: random.Random, rare: float) -> dict[str, Maker]:
    """Return a maker for every kind; `rare` is for all but English-only documents."""
    english, swahili, common = WordSource(rng), WordSource(rng, rare), WordSource(rng, 0.0)
    languages: tuple[Language, Language] = ("en", "sw")

    def mixed(draw: Callable[[WordSource], ex.ReadingQuestion]) -> Maker:
        def make() -> Exercise:
            language, question_language = rng.sample(languages, 2)
            return draw(swahili).exercise(language, question_language)

        return lambda: ex.draw_from("train", make)

    def statements(
        words: WordSource, language: Language, switch: LanguageChoice | None = None
    ) -> Exercise:
        sentences = [draw_statement(words) for _ in range(rng.choice((1, 2, 3)))]
        text = render_all(sentences, language, switch)
        return Exercise("", text, text)

    def switched() -> Exercise:
        """Return a text with a third or more of its words in the other language; no arithmetic."""
        language, other_language = rng.sample(languages, 2)
        share = rng.choice((0.3, 0.6))
        kind = rng.random()

        def switch() -> Language:
            return other_language if rng.random() < share else language

        if kind < 0.4:
            return statements(swahili, language, switch)
        draw = ex.draw_facts if kind < 0.8 else ex.draw_story
        return ex.draw_from("train", lambda: draw(swahili).exercise(language, switch=switch))

    def mixed_math() -> Exercise:
        """Return a problem half of whose words are in the other language, one of them English."""
        language = rng.choice(languages)
        switch = partial(rng.choice, languages)
        while True:
            exercise = ex.math(swahili, language, MILD_KINDS, thought=thought(), switch=switch)
            if set(exercise.prompt.split()) & set(TRANSLATION):
                return exercise

    def thought() -> bool:
        return rng.random() < THOUGHT_SHARE

    def common_math() -> Exercise:
        """Return a problem in the target language without rare words, answer included."""
        while True:
            exercise = ex.math(common, "sw", MILD_KINDS, thought=thought())
            if " ".join(exercise.answer.split()[-3:-1]) not in _RARE_TARGETS:
                return exercise

    def for_training(*makers: Maker) -> Maker:
        return lambda: ex.draw_from("train", lambda: rng.choice(makers)())

    return {
        "equations": lambda: ex.equations(english),
        "english math": for_training(lambda: ex.math(english, "en", MILD_KINDS, thought=thought())),
        "english hard math": for_training(lambda: ex.math(english, "en")),
        "swahili math": for_training(common_math),
        "mixed math": for_training(mixed_math),
        "english statements": lambda: statements(english, "en"),
        "swahili statements": lambda: statements(swahili, "sw"),
        "english facts": for_training(lambda: ex.draw_facts(english).exercise("en")),
        "swahili facts": for_training(lambda: ex.draw_facts(swahili).exercise("sw")),
        "mixed facts": mixed(ex.draw_facts),
        "english comprehension": for_training(lambda: ex.draw_story(english).exercise("en")),
        "swahili comprehension": for_training(lambda: ex.draw_story(swahili).exercise("sw")),
        "mixed comprehension": mixed(ex.draw_story),
        "translation": for_training(
            lambda: ex.translation_exercise(swahili, "en"),
            lambda: ex.translation_exercise(swahili, "sw"),
        ),
        "words": lambda: ex.word_translation(swahili, rng.choice(languages)),
        "code switching": switched,
    }


def draw_documents(name: str, seed: int, *, rare: float = 0.5) -> Iterator[Exercise]:
    """Yield the documents of a stream without end.

    Args:
        name: of the stream, in `MIXES`.
        seed: seed of every draw.
        rare: share of rare words in documents that hold target-language words, 0 to 1.
    """
    rng = random.Random(seed)
    makers = _makers(rng, rare)
    kinds, shares = list(MIXES[name]), list(MIXES[name].values())
    while True:
        yield makers[rng.choices(kinds, shares)[0]]()
