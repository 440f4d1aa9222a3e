"""What the generated rows hold: the same in every language, split by content, no arithmetic."""

import random
import re
import string
from itertools import pairwise
from typing import Any

import pytest

from ablations.smol import exercises as ex
from ablations.smol.data import FINAL_NUMBER, FINAL_WORDS
from ablations.smol.languages import LANGUAGES, TARGETS, table
from ablations.smol.problems import KINDS, Draw, draw_problem

CALCULATION = re.compile(r"\d\s*[-+*/=]\s*\d")


def slots_of(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_language_says_the_same():
    english: dict[str, Any] = table()["en"]
    for code in TARGETS:
        words = table()[code]
        assert list(words) == list(english)
        for form, said in english.items():
            if not isinstance(said, list):
                continue
            assert len(words[form]) == len(said), (code, form)
            for mine, theirs in zip(words[form], said, strict=True):
                if isinstance(theirs, str):
                    assert slots_of(mine) - {"other", "o", "how"} == slots_of(theirs) - {"o", "how"}
                    assert {"o", "how"} & slots_of(mine) == {"o", "how"} & slots_of(theirs)


def test_a_problem_is_solved_by_the_numbers_of_its_text():
    rng, seen = random.Random(1), set[str]()
    for _ in range(2000):
        problem = draw_problem(rng)
        seen.add(problem.kind)
        text = " ".join(each.render("en") for each in problem.sentences)
        known = [int(number) for number in re.findall(r"\d+", text)]
        for before, after in pairwise(problem.steps):
            assert after.left == before.result
        used = {step.right for step in problem.steps} | {problem.steps[0].left}
        assert used == set(known)
        assert problem.answer > 0
        assert all(eval(f"{s.left} {s.operator} {s.right}") == s.result for s in problem.steps)
    assert seen == set(KINDS)


@pytest.mark.parametrize("family", ex.FAMILIES)
def test_the_content_is_the_same_in_every_language(family):
    keys = {
        code: [ex.FAMILIES[family](random.Random(seed), code).key for seed in range(200)]
        for code in LANGUAGES
    }
    assert all(found == keys["en"] for found in keys.values())


@pytest.mark.parametrize("family", ["math", "comprehension", "translate"])
def test_no_test_content_is_learned_in_any_language(family):
    make = ex.FAMILIES[family]
    learned = {row.key for row in ex.draw_rows(make, "es", "train", 1500, "a")}
    tested = {row.key for row in ex.draw_rows(make, "sw", "test", 300, "b")}
    assert learned
    assert not learned & tested


@pytest.mark.parametrize("code", TARGETS)
def test_a_language_expert_sees_no_calculation(code):
    for family in set(ex.FAMILIES) - {"math"}:
        for row in ex.draw_rows(ex.FAMILIES[family], code, "train", 400, "law"):
            assert not CALCULATION.search(row.prompt + row.solution)
            if family == "comprehension":
                # What is answered stands in the text: every number of the answer does.
                text = row.prompt.rpartition("\n")[0]
                assert set(re.findall(r"\d+", row.solution)) <= set(re.findall(r"\d+", text))


def test_no_question_of_comprehension_is_one_of_a_problem():
    rng = random.Random(2)
    asked = {draw_problem(rng).sentences[-1].form for _ in range(500)}
    assert len(asked) == 6
    for make in ex._QUESTIONS:
        assert make(Draw(rng), "es")[1].form not in asked


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_filters_read_every_solution(code):
    for row in ex.draw_rows(ex.math, code, "test", 100, "filter"):
        assert re.findall(FINAL_NUMBER, row.solution)[-1] == row.answer
        assert "\n" not in row.solution
    for row in ex.draw_rows(ex.comprehension, code, "test", 100, "filter"):
        assert re.findall(FINAL_WORDS, row.solution)[-1] == row.answer
    assert re.findall(FINAL_NUMBER, "12 + 5 = 17. 17.") == []


def test_sentences_begin_with_a_capital():
    for code in LANGUAGES:
        for row in ex.draw_rows(ex.plain_text, code, "train", 50, "capital"):
            for sentence in re.split(r"(?<=\.) ", row.solution):
                assert sentence[0].isupper(), sentence
