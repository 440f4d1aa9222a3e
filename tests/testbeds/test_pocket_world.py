"""Laws of the world, of the streams drawn from it, and of its tasks under lm-eval itself."""

import hashlib
import itertools
import random
import re
from functools import cache

import pytest

from ablations.pocket_world import exercises, world
from ablations.pocket_world.corpora import MIXES, THOUGHT_SHARE, draw_documents
from ablations.pocket_world.exercises import TEST_KINDS
from ablations.pocket_world.world import RARE, SYLLABLES, TRANSLATION
from ablations.testbeds.pocket import build
from ablations.testbeds.pocket.pretraining import vocabulary
from ablations.testbeds.pocket.tasks import EXAMPLES, TASK_NAMES, draw_items, write_pocket_tasks
from tests.standins.scripted import ask, read_jsonl


def answer_of(sentences):
    """Read the sentences as a ledger, (owner, item) -> number; return what the last one asks."""
    ledger = {}
    for sentence in sentences[:-1]:
        slots = sentence.slots
        place = slots["owner"], slots["item"]
        if sentence.form == "has":
            ledger[place] = slots["count"]
        elif sentence.form == "change":
            ledger[place] += (1 if slots["verb"] in world.CATEGORIES["gain"] else -1) * slots[
                "count"
            ]
        else:
            sign = {"more": 1, "fewer": -1}[slots["degree"]]
            ledger[place] = ledger[slots["other"], slots["item"]] + sign * slots["count"]
    question = sentences[-1]
    if question.form == "ask_total":
        return sum(ledger.values())
    assert question.form in ("ask_now", "ask_count")
    return ledger[question.slots["owner"], question.slots["item"]]


def test_the_answer_follows_from_the_sentences_and_from_the_equations():
    numbers = {TRANSLATION[number]: int(number) for number in world.CATEGORIES["number"]}
    words = world.WordSource(random.Random(1))
    for problem in (world.draw_problem(words, TEST_KINDS) for _ in range(3000)):
        assert problem.answer == answer_of(problem.sentences)
        assert 1 <= problem.answer <= 20
        solutions = [problem.solution(language) for language in ("en", "sw")]
        equations = re.findall(r"(\d+) ([+-]) (\d+) = (\d+) \.", solutions[0])
        assert len(equations) == len(problem.steps)
        for left, operator, right, result in equations:
            value = int(left) + int(right) if operator == "+" else int(left) - int(right)
            assert value == int(result)
        steps, number = re.fullmatch(r"\( (.*) \) the answer is (\d+) \.", solutions[0]).groups()
        same, word = re.fullmatch(r"\( (.*) \) jibu ni ([a-z]+ [a-z]+) \.", solutions[1]).groups()
        assert steps == same
        assert int(number) == numbers[word] == problem.answer
        assert problem.solution("sw", thought=False) == f"( ) jibu ni {word} ."


DIGESTS = {"base": "5cddba64653289e6", "language": "ec68d8b5aec33ab4", "task": "294821317d5e2367"}
"""Stream -> start of the SHA-256 of its first documents, in `build.VERSION` 2."""

SWAHILI = frozenset(
    (*SYLLABLES, *world.DEGREES.values(), "ana", "sasa", "ngapi", "pamoja", "ya", "nini", "nani")
)
ARITHMETIC = frozenset(("=", "+", "-", "solve"))
RARE_TARGETS = frozenset(TRANSLATION[word] for word in RARE)


@cache
def sample(name, number=6000, seed=0):
    return list(itertools.islice(draw_documents(name, seed, rare=0.3), number))


def tokens(exercise):
    return f"{exercise.prompt} {exercise.answer}".split()


def is_target_math(words):
    """Say whether target-language words stand in a document with arithmetic or its frame."""
    return bool(SWAHILI & set(words)) and bool(ARITHMETIC & set(words))


def test_no_expert_sees_target_language_math():
    row = draw_items("math", "sw", "test", 1, 0)[0]
    assert is_target_math(f"{row['prompt']} {row['solution']}".split())  # the check finds it
    for name in ("language", "task"):
        assert not any(is_target_math(tokens(exercise)) for exercise in sample(name))
    assert not any(ARITHMETIC & set(tokens(exercise)) for exercise in sample("language"))
    for exercise in sample("task"):
        assert exercise.prompt.endswith("solve :")
        assert "=" in exercise.answer  # always step by step


def test_rare_words_meet_arithmetic_only_beside_english_words_and_only_in_the_base():
    found = [e for e in sample("base") if is_target_math(tokens(e))]
    whole = [e for e in found if not set(e.prompt.split()) & set(TRANSLATION)]
    assert len(whole) / 6000 == pytest.approx(MIXES["base"]["swahili math"], abs=0.015)
    assert len(found) / 6000 > len(whole) / 6000 + 0.08
    for exercise in whole:
        syllables = [word for word in tokens(exercise) if word in SYLLABLES]
        content = {" ".join(pair) for pair in zip(syllables[::2], syllables[1::2], strict=True)}
        assert content <= set(TRANSLATION.values())
        assert not content & RARE_TARGETS
    thought = sum("=" in exercise.answer for exercise in found) / len(found)
    assert thought == pytest.approx(THOUGHT_SHARE, abs=0.05)


@pytest.mark.parametrize("name", MIXES)
def test_streams_follow_their_seed_and_version(name):
    """What a seed gives may change with `build.VERSION` only, which has testbeds built anew."""
    documents = sample(name, 300, seed=5)
    assert documents != sample(name, 300, seed=6)
    assert build.VERSION == 2
    assert hashlib.sha256(repr(documents).encode()).hexdigest()[:16] == DIGESTS[name]


def test_evaluation_content_is_never_trained_on():
    keys = {
        e.key
        for name in MIXES
        for e in sample(name)
        if e.prompt.endswith(("solve :", "answer :"))
        or (e.prompt.endswith((" english :", " swahili :")) and len(e.key.split()) > 1)
    }
    assert {exercises.split_of(key) for key in keys} == {"train"}


@pytest.fixture(scope="module")
def tasks_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_pocket_tasks(folder, folder, 12)
    return folder


def gold(row):
    return str(row["answer"] if "choices" in row else row["solution"])


def wrong(row):
    if row["prompt"].endswith("solve :"):
        return gold(row).replace(f"{row['answer']} .", "zebra .")
    if "choices" in row:
        return next(str(choice) for choice in row["choices"] if choice != row["answer"])
    return "zebra zebra ."


@pytest.mark.parametrize(("answer", "score"), [(gold, 1), (wrong, 0)])
def test_an_oracle_scores_one_and_a_liar_zero(answer, score, tasks_dir, monkeypatch):
    monkeypatch.chdir(tasks_dir.parent)
    scores = ask(lambda _, row: answer(row), ("pocket",), include_path=tasks_dir).scores
    assert {found.task for found in scores} == set(TASK_NAMES)
    for found in scores:
        assert found.value == pytest.approx(score), found
        assert found.n == 12


def test_prompts_have_known_words_and_examples_are_no_test_items(tasks_dir):
    train, test = (
        [row["prompt"] for path in tasks_dir.rglob(f"*.{split}.jsonl") for row in read_jsonl(path)]
        for split in ("train", "test")
    )
    assert (len(train), len(test)) == (8 * EXAMPLES, 8 * 12)
    assert not set(train) & set(test)
    assert set(" ".join(test).split()) <= set(vocabulary())


@pytest.mark.parametrize("family", ["math", "translate", "comprehension", "facts"])
def test_items_are_distinct_test_content_and_the_same_in_both_languages(family):
    english = draw_items(family, "en", "test", 200, 1)
    swahili = draw_items(family, "sw", "test", 200, 1)
    assert english == draw_items(family, "en", "test", 200, 1)
    assert english != draw_items(family, "en", "test", 200, 2)
    prompts = [row["prompt"] for row in english]
    assert len(set(prompts)) == 200
    for one, other in zip(english, swahili, strict=True):
        if family == "math":
            assert world.say(one["answer"], "sw") == other["answer"]
            assert one["solution"].split("the")[0] == other["solution"].split("jibu")[0]
        content = re.fullmatch("(.*) (?:solve|answer|swahili) :", one["prompt"])
        assert exercises.split_of(content[1]) == "test"
