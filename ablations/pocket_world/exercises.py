"""Exercises: a prompt and the answer expected after it.

The instruction stands behind the text, so that a model reads the text before it knows the task.
The same makers feed the training streams (`corpora`) and the evaluation tasks; `split_of` keeps
the two apart by content, in every language and whatever the seeds are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ablations.pocket_world.world import (
    CATEGORIES,
    LARGEST_NUMBER,
    TRANSLATION,
    Language,
    LanguageChoice,
    WordSource,
    WorldSentence,
    draw_change,
    draw_equation,
    draw_problem,
    draw_statement,
    render_all,
    say,
    two,
)

TEST_KINDS: Mapping[str, float] = {"one": 0.2, "two": 0.45, "total": 0.15, "compare": 0.2}
"""Shares of the kinds of problem in the tests, and in what the math expert learns from."""


class Exercise(NamedTuple):
    """A prompt, the answer, and `key`: the same content in English, whatever its language."""

    prompt: str
    answer: str
    key: str


def split_of(key: str) -> str:
    """Return the split that content belongs to: a checksum of its English rendering."""
    return ("test", "development", *["train"] * 8)[zlib.crc32(key.encode()) % 10]


def draw_from(split: str, make: Callable[[], Exercise]) -> Exercise:
    """Return the first exercise of `make` that belongs to `split`."""
    while True:
        exercise = make()
        if split_of(exercise.key) == split:
            return exercise


def math(
    words: WordSource,
    language: Language,
    kinds: Mapping[str, float] = TEST_KINDS,
    *,
    thought: bool = True,
    switch: LanguageChoice | None = None,
) -> Exercise:
    """Return a word problem; `switch` chooses the language of each word of its text."""
    problem = draw_problem(words, kinds)
    text = render_all(problem.sentences, language, switch)
    key = render_all(problem.sentences, "en")
    return Exercise(f"{text} solve :", problem.solution(language, thought=thought), key)


class ReadingQuestion(NamedTuple):
    """Statements, a question about them, and its answer: a word (by its English key) or a name."""

    statements: Sequence[WorldSentence]
    question: WorldSentence
    answer: str | int

    def exercise(
        self,
        language: Language,
        question_language: Language | None = None,
        switch: LanguageChoice | None = None,
    ) -> Exercise:
        """Return the exercise; its question may be in another language, words of it switched."""
        question_language = question_language or language
        text = render_all(self.statements, language, switch)
        prompt = f"{text} {self.question.render(question_language)} answer :"
        key = render_all([*self.statements, self.question], "en")
        return Exercise(prompt, f"{say(self.answer, question_language)} .", key)


def draw_facts(words: WordSource) -> ReadingQuestion:
    """Return two statements and a question about one of them."""
    rng = words.rng
    owner, other_owner = words.two_names()
    form = rng.random()
    if form < 0.15:
        animals = two(lambda: words.word("animal"))
        properties = two(lambda: words.word("adjective"))
        statements = [
            WorldSentence("description", animal=animal, adjective=adjective)
            for animal, adjective in zip(animals, properties, strict=True)
        ]
        rng.shuffle(statements)
        return ReadingQuestion(
            statements, WorldSentence("ask_property", animal=animals[0]), properties[0]
        )
    count, other_count = two(lambda: words.number(1, LARGEST_NUMBER))
    if form < 0.35:
        item = distractor = words.word("item")
    else:
        item, distractor = two(lambda: words.word("item"))
    statements = [
        WorldSentence("has", owner=owner, count=count, item=item),
        WorldSentence("has", owner=other_owner, count=other_count, item=distractor),
    ]
    rng.shuffle(statements)
    if form < 0.35:
        return ReadingQuestion(
            statements, WorldSentence("ask_owner", count=count, item=item), owner
        )
    question_form = rng.random()
    if question_form < 0.25:
        return ReadingQuestion(statements, WorldSentence("ask_who", item=item), owner)
    if question_form < 0.5:
        return ReadingQuestion(statements, WorldSentence("ask_what", owner=owner), item)
    return ReadingQuestion(statements, WorldSentence("ask_count", owner=owner, item=item), count)


def draw_story(words: WordSource) -> ReadingQuestion:
    """Return a possession, a change, and the question whether there are more or fewer now."""
    owner, item = words.name(), words.word("item")
    change, amount = draw_change(words, owner, item)
    start = WorldSentence("has", owner=owner, count=words.number(1, LARGEST_NUMBER), item=item)
    answer = "more" if amount > 0 else "fewer"
    return ReadingQuestion([start, change], WorldSentence("ask_degree", owner=owner), answer)


def translation_exercise(words: WordSource, source: Language) -> Exercise:
    """Return one or two sentences to translate out of `source` into the other language."""
    if words.rng.random() < 0.2:
        owner, item = words.name(), words.word("item")
        questions = (
            WorldSentence("ask_now", owner=owner, item=item),
            WorldSentence("ask_count", owner=owner, item=item),
            WorldSentence("ask_total", item=item),
        )
        passage = [words.rng.choice(questions)]
    else:
        passage = [draw_statement(words) for _ in range(words.rng.choice((1, 1, 2)))]
    return _translate(render_all(passage, "en"), render_all(passage, "sw"), source)


def word_translation(words: WordSource, source: Language) -> Exercise:
    """Return a single word to translate (training only: there are too few to hold any back)."""
    english = words.word(words.rng.choice([*CATEGORIES, "number", "number"]))
    return _translate(english, TRANSLATION[english], source)


def _translate(english: str, swahili: str, source: Language) -> Exercise:
    if source == "en":
        return Exercise(f"{english} swahili :", swahili, english)
    return Exercise(f"{swahili} english :", english, english)


def equations(words: WordSource) -> Exercise:
    """Return three bare equations; the prompt is empty, so every token is learned."""
    text = " ".join(f"{draw_equation(words)} ." for _ in range(3))
    return Exercise("", text, text)
