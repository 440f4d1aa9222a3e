"""Exercises: a prompt and the answer expected after it. Knows the frames around sentences.

The same makers feed the training streams and the evaluation tasks; `split_of` keeps the two
apart for good, by content and in every language, whatever the seeds are. It does not know which
exercises a model is trained on: that is in `corpora`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
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
    PROBLEM_KINDS,
    AskCount,
    AskDegree,
    AskNow,
    AskTotal,
    AskWhat,
    AskWho,
    Has,
    ProblemKind,
    Sentence,
    Sight,
    draw_equation,
    draw_problem,
    draw_statement,
    draw_story,
    render_all,
)

Split = Literal["train", "test", "development"]


@dataclass(frozen=True)
class Exercise:
    """A prompt, the answer, and `key`: the same content in English, whatever its language."""

    prompt: str
    answer: str
    key: str


def split_of(key: str) -> Split:
    """Return the split that content belongs to: a tenth each for test and development.

    The split is a checksum of the English rendering, so a translation pair, a problem and its
    Swahili twin fall on the same side, and no training stream can meet a test item.
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
    words: WordSource, language: Language, kinds: Sequence[ProblemKind] = PROBLEM_KINDS
) -> Exercise:
    """Return a word problem of one of `kinds` with its chain of thought."""
    problem = draw_problem(words)
    while problem.kind not in kinds:
        problem = draw_problem(words)
    text = render_all(problem.sentences, language)
    key = render_all(problem.sentences, "en")
    return Exercise(f"solve : {text} steps :", problem.solution(language), key)


def _question(sentences: list[Sentence], answer: str, language: Language) -> Exercise:
    prompt = f"question : {render_all(sentences, language)} answer :"
    return Exercise(prompt, f"{say(answer, language)} .", render_all(sentences, "en"))


def facts(words: WordSource, language: Language) -> Exercise:
    """Return two statements and a question about one of them, answered by one of its words.

    In half of them the other statement is about another owner's items, which is hard to tell
    apart; in the other half it is about an animal, which is easy.
    """
    rng = words.rng
    (owner, other), (item, distractor) = words.two_names(), words.two_words("item")
    given: list[Sentence] = [Has(owner, rng.randint(1, 20), item)]
    if rng.random() < 0.5:
        given.append(Has(other, rng.randint(1, 20), distractor))
    else:
        animal, place = words.word("animal"), words.word("place")
        given.append(Sight(other, words.word("attitude"), animal, place))
    rng.shuffle(given)
    if rng.random() < 0.5:
        return _question([*given, AskWhat(owner)], item, language)
    return _question([*given, AskWho(item)], owner, language)


def comprehension(words: WordSource, language: Language) -> Exercise:
    """Return a story and the question whether its owner has more or fewer items now."""
    start, change, outcome = draw_story(words)
    return _question([start, change, AskDegree(start.owner)], outcome.degree, language)


def _draw_passage(words: WordSource) -> tuple[Sentence, ...]:
    share = words.rng.random()
    if share < 0.24:
        owner, item = words.name(), words.word("item")
        questions = (AskNow(owner, item), AskCount(owner, item), AskTotal(item))
        return (words.rng.choice(questions),)
    if share < 0.36:
        return draw_story(words)
    return tuple(draw_statement(words) for _ in range(words.rng.choice((1, 1, 2))))


def translation(words: WordSource, source: Language) -> Exercise:
    """Return one to three sentences to translate out of `source` into the other language."""
    passage = _draw_passage(words)
    english, swahili = render_all(passage, "en"), render_all(passage, "sw")
    return _translate(english, swahili, source)


def word_translation(words: WordSource, source: Language) -> Exercise:
    """Return a single word to translate (training only: there are too few to hold any back)."""
    english = words.word(words.rng.choice(list(CATEGORIES)))
    return _translate(english, TRANSLATION[english], source)


def _translate(english: str, swahili: str, source: Language) -> Exercise:
    if source == "en":
        return Exercise(f"translate english : {english} swahili :", swahili, english)
    return Exercise(f"tafsiri kiswahili : {swahili} kiingereza :", english, english)


def repetition(words: WordSource, language: Language) -> Exercise:
    """Return a statement to repeat."""
    statement = draw_statement(words)
    text = statement.render(language)
    frame = "repeat : {} answer :" if language == "en" else "rudia : {} jibu :"
    return Exercise(frame.format(text), text, statement.render("en"))


def counting(words: WordSource, language: Language) -> Exercise:
    """Return a row of 1 to 8 equal words to count."""
    item, number = words.word("item"), words.rng.randint(1, 8)
    frame = "count : {} answer :" if language == "en" else "hesabu : {} jibu :"
    row = " ".join([say(item, language)] * number)
    return Exercise(frame.format(row), f"{number} .", " ".join([item] * number))


_COPYABLE = (
    *NAMES,
    *map(str, range(1, 21)),
    *(word for pair in TRANSLATION.items() for word in pair),
)


def copying(words: WordSource) -> Exercise:
    """Return 3 to 8 words of either language, without grammar, to repeat."""
    text = " ".join(words.rng.choice(_COPYABLE) for _ in range(words.rng.randint(3, 8)))
    order = words.rng.choice(("repeat", "rudia"))
    return Exercise(f"{order} : {text} answer :", text, text)


def equations(words: WordSource) -> Exercise:
    """Return three bare equations; the prompt is empty, so every token is learned."""
    text = " ".join(draw_equation(words.rng).render() for _ in range(3))
    return Exercise("", text, text)


def all_tokens() -> list[str]:
    """Return every token of the world: special tokens first, then in a fixed order."""
    frames = (
        "solve steps question answer : . ? , translate english swahili repeat count"
        " tafsiri kiswahili kiingereza rudia hesabu jibu the answer is ni + - ="
    )
    templates = " ".join(
        word
        for kind in Sentence.__subclasses__()
        for word in f"{kind.EN} {kind.SW}".split()
        if not word.startswith("{")
    )
    tokens = [
        *("<pad>", "<bos>", "<eos>", "<unk>"),
        *map(str, range(LARGEST_NUMBER + 1)),
        *NAMES,
        *(word for pair in TRANSLATION.items() for word in pair),
        *frames.split(),
        *templates.split(),
    ]
    return list(dict.fromkeys(tokens))
