"""Laws of the world: answers follow from the sentences, and both languages say the same."""

from __future__ import annotations

import random
import re

import pytest

from ablations.pocket.lexicon import CATEGORIES, NAMES, TRANSLATION, WordSource, say
from ablations.pocket.world import (
    AskCount,
    AskNow,
    AskTotal,
    Change,
    Compare,
    Has,
    Outcome,
    Problem,
    Sentence,
    draw_equation,
    draw_problem,
    draw_statement,
    draw_story,
    render_all,
)


def problems(number: int, seed: int = 0) -> list[Problem]:
    words = WordSource(random.Random(seed))
    return [draw_problem(words) for _ in range(number)]


def owned_after(sentences: tuple[Sentence, ...]) -> dict[tuple[str, str], int]:
    """Read the sentences as a ledger: (owner, item) → number."""
    ledger: dict[tuple[str, str], int] = {}
    for sentence in sentences:
        if isinstance(sentence, Has):
            ledger[sentence.owner, sentence.item] = sentence.count
        elif isinstance(sentence, Change):
            sign = 1 if sentence.verb in CATEGORIES["gain"] else -1
            ledger[sentence.owner, sentence.item] += sign * sentence.count
        elif isinstance(sentence, Compare):
            sign = {"more": 1, "fewer": -1}[sentence.degree]
            there = ledger[sentence.other, sentence.item]
            ledger[sentence.owner, sentence.item] = there + sign * sentence.count
    return ledger


def asked(problem: Problem) -> int:
    ledger, question = owned_after(problem.sentences), problem.sentences[-1]
    if isinstance(question, AskTotal):
        return sum(ledger.values())
    assert isinstance(question, AskNow | AskCount)
    return ledger[question.owner, question.item]


def test_answer_follows_from_the_sentences() -> None:
    drawn = problems(5000)
    assert {problem.kind for problem in drawn} == {"one", "two", "total", "compare"}
    for problem in drawn:
        assert problem.answer == asked(problem)
        assert 0 <= problem.answer <= 20


@pytest.mark.parametrize("language", ["en", "sw"])
def test_every_rendered_equation_is_true_and_the_last_is_the_answer(language: str) -> None:
    for problem in problems(3000, seed=1):
        solution = problem.solution(language)  # type: ignore[arg-type]
        equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+) \.", solution)
        assert len(equations) == (2 if problem.kind == "two" else 1)
        for left, operator, right, result in equations:
            value = int(left) + int(right) if operator == "+" else int(left) - int(right)
            assert value == int(result)
        final = re.fullmatch(r".* (?:the answer is|jibu ni) (\d+) \.", solution)
        assert final is not None
        assert int(final[1]) == int(equations[-1][3]) == asked(problem)


def test_bare_equations_are_true_and_in_range() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        step = draw_equation(rng)
        assert eval(f"{step.left} {step.operator} {step.right}") == step.result
        assert 0 <= step.result <= 30


def test_story_outcome_is_what_the_change_does() -> None:
    words = WordSource(random.Random(4))
    for _ in range(2000):
        start, change, outcome = draw_story(words)
        gained = change.verb in CATEGORIES["gain"]
        assert outcome == Outcome(start.owner, "more" if gained else "fewer", start.item)


def test_translation_is_one_to_one() -> None:
    assert len(set(TRANSLATION.values())) == len(TRANSLATION)
    assert not set(TRANSLATION) & set(TRANSLATION.values())
    assert not set(NAMES) & (set(TRANSLATION) | set(TRANSLATION.values()))


def test_both_renderings_hold_the_same_content() -> None:
    words = WordSource(random.Random(5))
    shared = set(TRANSLATION) | set(NAMES)
    for _ in range(3000):
        sentences = [draw_statement(words), *draw_problem(words).sentences]
        english = render_all(sentences, "en").split()
        swahili = render_all(sentences, "sw").split()
        content = [say(word, "sw") for word in english if word in shared or word.isdigit()]
        kept = {*TRANSLATION.values(), *NAMES}
        found = [word for word in swahili if word in kept or word.isdigit()]
        assert sorted(content) == sorted(found)
        assert not set(TRANSLATION) & set(swahili)
        assert not set(TRANSLATION.values()) & set(english)


def test_zipf_makes_some_words_rare_and_the_same_ones_everywhere() -> None:
    def counts(seed: int) -> dict[str, int]:
        words = WordSource(random.Random(seed), zipf=1.5)
        drawn = [words.word("item") for _ in range(4000)]
        return {item: drawn.count(item) for item in CATEGORIES["item"]}

    first, second = counts(1), counts(2)
    ranked = sorted(first, key=first.__getitem__)
    assert first[ranked[-1]] > 20 * max(1, first[ranked[0]])
    assert set(ranked[-3:]) == set(sorted(second, key=second.__getitem__)[-3:])
