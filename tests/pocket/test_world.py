"""Laws of the world: answers follow from the sentences, and both languages say the same."""

import random
import re
from collections import Counter

from ablations.pocket.exercises import TEST_KINDS, draw_facts
from ablations.pocket.world import (
    CATEGORIES,
    NAMES,
    SYLLABLES,
    TRANSLATION,
    WordSource,
    draw_problem,
)

ASKED = {
    **{"ask_property": "adjective", "ask_who": "owner", "ask_owner": "owner"},
    **{"ask_what": "item", "ask_count": "count"},
}
"""Question -> the slot of a statement that answers it."""


def problems(number, seed=0):
    words = WordSource(random.Random(seed))
    return [draw_problem(words, TEST_KINDS) for _ in range(number)]


def asked(sentences):
    """Read the sentences as a ledger, (owner, item) -> number; return what the last one asks."""
    ledger: dict[tuple[str, str], int] = {}
    for sentence in sentences[:-1]:
        slots = sentence.slots
        place = slots["owner"], slots["item"]
        if sentence.form == "has":
            ledger[place] = slots["count"]
        elif sentence.form == "change":
            ledger[place] += (1 if slots["verb"] in CATEGORIES["gain"] else -1) * slots["count"]
        else:
            sign = {"more": 1, "fewer": -1}[slots["degree"]]
            ledger[place] = ledger[slots["other"], slots["item"]] + sign * slots["count"]
    question = sentences[-1]
    if question.form == "ask_total":
        return sum(ledger.values())
    assert question.form in ("ask_now", "ask_count")
    return ledger[question.slots["owner"], question.slots["item"]]


def test_the_answer_follows_from_the_sentences_and_from_the_equations():
    numbers = {TRANSLATION[number]: int(number) for number in CATEGORIES["number"]}
    for problem in problems(3000, seed=1):
        assert problem.answer == asked(problem.sentences)
        assert 1 <= problem.answer <= 20
        solutions = [problem.solution(language) for language in ("en", "sw")]  # type: ignore[arg-type]
        equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+) \.", solutions[0])
        assert len(equations) == len(problem.steps)
        for left, operator, right, result in equations:
            value = int(left) + int(right) if operator == "+" else int(left) - int(right)
            assert value == int(result)
        english = re.fullmatch(r"\( (.*) \) the answer is (\d+) \.", solutions[0])
        target = re.fullmatch(r"\( (.*) \) jibu ni ([a-z]+ [a-z]+) \.", solutions[1])
        assert english is not None
        assert target is not None
        assert english[1] == target[1]  # the steps are the same in both languages
        assert int(english[2]) == numbers[target[2]] == problem.answer
        at_once = problem.solution("sw", thought=False)
        assert at_once == f"( ) jibu ni {target[2]} ."


def test_a_question_is_answered_by_its_statements():
    words = WordSource(random.Random(5))
    kinds = Counter[str]()
    for _ in range(4000):
        facts = draw_facts(words)
        kinds[facts.question.form] += 1
        # What the question names leaves one statement, and its answer is what it does not name.
        named = facts.question.slots.items()
        (statement,) = (s for s in facts.statements if named <= s.slots.items())
        assert statement.slots[ASKED[facts.question.form]] == facts.answer
    assert len(kinds) == 5
    assert min(kinds.values()) > 100


def test_translation_is_one_to_one_and_two_syllables_a_word():
    assert len(set(TRANSLATION.values())) == len(TRANSLATION)
    assert not set(TRANSLATION) & {*SYLLABLES, *NAMES}
    for words in CATEGORIES.values():
        for word in words:
            assert len(TRANSLATION[word].split()) == 2
            assert set(TRANSLATION[word].split()) <= set(SYLLABLES)
