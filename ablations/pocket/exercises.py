"""Exercises: a prompt and the answer expected after it.

The instruction stands behind the text, so that a model reads the text before it knows the task.
The same makers feed the training streams and the evaluation tasks; `split_of` keeps the two
apart for good, by content and in every language, whatever the seeds are. It does not know which
exercises a model is trained on: that is in `corpora`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ablations.pocket.lexicon import (
    CATEGORIES,
    LARGEST_NUMBER,
    NAMES,
    TRANSLATION,
    Language,
    WordSource,
    say,
)
from ablations.pocket.world import (
    AskCount,
    AskDegree,
    AskNow,
    AskOwner,
    AskProperty,
    AskTotal,
    AskWhat,
    AskWho,
    Choice,
    Description,
    Has,
    ProblemKind,
    Sentence,
    draw_change,
    draw_equation,
    draw_problem,
    draw_statement,
    render_all,
)

Split = Literal["train", "test", "development"]

TEST_KINDS: Mapping[ProblemKind, float] = {"one": 0.2, "two": 0.45, "total": 0.15, "compare": 0.2}
"""Shares of the kinds of problem in the tests, and in what the math expert learns from."""


@dataclass(frozen=True)
class Exercise:
    """A prompt, the answer, and `key`: the same content in English, whatever its language."""

    prompt: str
    answer: str
    key: str


def split_of(key: str) -> Split:
    """Return the split that content belongs to: a tenth each for test and development.

    The split is a checksum of the English rendering, so a translation pair, a problem and its
    target-language twin fall on the same side, and no training stream can meet a test item.
    """
    bucket = zlib.crc32(key.encode()) % 10
    return ("test", "development", *["train"] * 8)[bucket]  # type: ignore[return-value]


def draw_from(split: Split, make: Callable[[], Exercise]) -> Exercise:
    """Return the first exercise of `make` that belongs to `split`."""
    while True:
        exercise = make()
        if split_of(exercise.key) == split:
            return exercise


def math(
    words: WordSource,
    language: Language,
    kinds: Mapping[ProblemKind, float] = TEST_KINDS,
    *,
    thought: bool = True,
    switch: Choice | None = None,
) -> Exercise:
    """Return a word problem, with its chain of thought or without.

    `switch` chooses the language of each word of the text, in place of `language`.
    """
    problem = draw_problem(words, kinds)
    text = render_all(problem.sentences, language, switch)
    key = render_all(problem.sentences, "en")
    return Exercise(f"{text} solve :", problem.solution(language, thought=thought), key)


@dataclass(frozen=True)
class Question:
    """Statements, a question about them, and its answer: a word (by its English key) or a name."""

    statements: Sequence[Sentence]
    question: Sentence
    answer: str | int

    def exercise(
        self, language: Language, asked_in: Language | None = None, switch: Choice | None = None
    ) -> Exercise:
        """Return the exercise.

        Args:
            language: of the statements.
            asked_in: of question and answer; None for the same.
            switch: chooses the language of each slot of the statements.
        """
        asked_in = asked_in or language
        text, question = (
            render_all(self.statements, language, switch),
            self.question.render(asked_in),
        )
        answer = f"{say(self.answer, asked_in)} ."
        key = render_all([*self.statements, self.question], "en")
        return Exercise(f"{text} {question} answer :", answer, key)


def draw_facts(words: WordSource) -> Question:
    """Return two statements and a question about one of them."""
    rng = words.rng
    (owner, other), which = words.two_names(), rng.random()
    if which < 0.15:
        animals, properties = words.two_words("animal"), words.two_words("adjective")
        described = [Description(*pair) for pair in zip(animals, properties, strict=True)]
        rng.shuffle(described)
        return Question(described, AskProperty(animals[0]), properties[0])
    count, lot = words.two_numbers(1, LARGEST_NUMBER)
    if which < 0.35:
        item = words.word("item")
        given = [Has(owner, count, item), Has(other, lot, item)]
        rng.shuffle(given)
        return Question(given, AskOwner(count, item), owner)
    item, distractor = words.two_words("item")
    given = [Has(owner, count, item), Has(other, lot, distractor)]
    rng.shuffle(given)
    asked = rng.random()
    if asked < 0.25:
        return Question(given, AskWho(item), owner)
    if asked < 0.5:
        return Question(given, AskWhat(owner), item)
    return Question(given, AskCount(owner, item), count)


def draw_story(words: WordSource) -> Question:
    """Return a possession, a change, and the question whether there are more or fewer now."""
    owner, item = words.name(), words.word("item")
    change, amount = draw_change(words, owner, item)
    start = Has(owner, words.number(1, LARGEST_NUMBER), item)
    return Question([start, change], AskDegree(owner), "more" if amount > 0 else "fewer")


def facts(words: WordSource, language: Language) -> Exercise:
    """Return a question about one of two statements, in one language."""
    return draw_facts(words).exercise(language)


def comprehension(words: WordSource, language: Language) -> Exercise:
    """Return a story and the question whether its owner has more or fewer items now."""
    return draw_story(words).exercise(language)


def _draw_passage(words: WordSource) -> tuple[Sentence, ...]:
    if words.rng.random() < 0.2:
        owner, item = words.name(), words.word("item")
        questions = (AskNow(owner, item), AskCount(owner, item), AskTotal(item))
        return (words.rng.choice(questions),)
    return tuple(draw_statement(words) for _ in range(words.rng.choice((1, 1, 2))))


def translation(words: WordSource, source: Language) -> Exercise:
    """Return one or two sentences to translate out of `source` into the other language."""
    passage = _draw_passage(words)
    english, swahili = render_all(passage, "en"), render_all(passage, "sw")
    return _translate(english, swahili, source)


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
    text = " ".join(draw_equation(words).render() for _ in range(3))
    return Exercise("", text, text)


def all_tokens() -> list[str]:
    """Return every token of the world: special tokens first, then in a fixed order."""
    frames = ". ? , : solve answer english swahili the answer is jibu ni + - = ( )"
    templates = " ".join(
        word
        for kind in Sentence.__subclasses__()
        for word in f"{kind.EN} {kind.SW}".split()
        if not word.startswith("{")
    )
    pairs = " ".join(word for pair in TRANSLATION.items() for word in pair)
    tokens = [
        *("<pad>", "<bos>", "<eos>", "<unk>"),
        *map(str, range(1, LARGEST_NUMBER + 1)),
        *NAMES,
        *pairs.split(),
        *frames.split(),
        *templates.split(),
    ]
    return list(dict.fromkeys(tokens))
