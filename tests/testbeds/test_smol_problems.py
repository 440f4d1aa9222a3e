"""Problems in pairs: nothing but the verb tells them apart, and no language expert calculates."""

import hashlib
import itertools
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ablations.tasks.catalog import floor_of
from ablations.tasks.twins import score_answers, score_order, score_result
from ablations.testbeds.smol import data
from ablations.testbeds.smol import math_problems as problems
from ablations.testbeds.smol.math_problems import (
    LANGUAGES,
    TARGETS,
    word_blind_floor,
    words,
)

ITEM = {"prompts": ["g", "l"], "solutions": [" 9 + 6 = 15.", " 9 - 6 = 3."], "answers": [15, 3]}
CALCULATION = re.compile(r"\d\s*[-+*/=]\s*\d")


@pytest.mark.parametrize("code", TARGETS)
def test_every_language_says_the_same(code):
    english, table = words()["en"], words()[code]
    assert list(table) == list(english)
    for form in (name for name, content in english.items() if isinstance(content, list)):
        assert len(table[form]) == len(english[form]), form
        for mine, theirs in zip(table[form], english[form], strict=True):
            if isinstance(theirs, str):
                one, other = (set(re.findall("{.*?}", text)) for text in (mine, theirs))
                assert one == other, form


@pytest.mark.parametrize("verbs", [problems.TRANSLATED, problems.NEW])
def test_a_pair_differs_in_the_verb_alone_in_every_language(verbs):
    rng = random.Random(1)
    for _ in range(200):
        gain, loss = problems.draw_pair(rng, "test", verbs)
        assert (gain.sentences[0], gain.sentences[2]) == (loss.sentences[0], loss.sentences[2])
        assert gain.sentences[1].slots == loss.sentences[1].slots
        assert {s.sentences[1].number for s in (gain, loss)} <= set(verbs)
        for code in LANGUAGES:
            texts = [problem.text(code) for problem in (gain, loss)]
            numbers = [re.findall(r"\d+", text) for text in texts]
            assert numbers[0] == numbers[1] == [str(gain.step.left), str(gain.step.right)]
            assert texts[0] != texts[1]
            assert all(re.match(r"¿?[A-Z]", part) for text in texts for part in text.split(". "))
        assert gain.step.result == gain.step.left + gain.step.right
        assert loss.step.result == gain.step.left - gain.step.right > 0


def test_numbers_and_things_of_the_test_are_in_no_row():
    drawn = {"train": [], "test": []}
    for split, seed in itertools.product(drawn, range(1000)):
        gain = problems.draw_pair(random.Random(seed), split)[0]
        content = (gain.step.left, gain.step.right), gain.sentences[0].slots["o"]
        drawn[split].append(content)
    for part in (0, 1):
        learned, tested = ({pair[part] for pair in drawn[split]} for split in ("train", "test"))
        assert not learned & tested
    assert all(b < a % 10 for (a, b), _ in drawn["test"])  # no borrowing


@pytest.mark.parametrize("code", LANGUAGES)
def test_comprehension_asks_what_the_verb_alone_tells(code):
    for seed in range(50):
        item = problems.draw_comprehension(random.Random(seed), code)
        pair = problems.draw_pair(random.Random(seed), "test")
        for prompt, problem in zip(item["prompts"], pair, strict=True):
            told = problems.join_sentences(problem.sentences[:2], code)
            assert prompt.startswith(told + " ")
            assert problem.sentences[2].render(code) not in prompt
        assert len({prompt.rpartition(". ")[2] for prompt in item["prompts"]}) == 1
        assert item["solutions"] == words()[code]["ends"]


@pytest.mark.parametrize("code", TARGETS)
def test_a_language_expert_learns_words_and_no_calculation(code):
    """No frame of a problem, no calculation and no new verb."""
    rng = random.Random(2)
    rows = [problems.language_row(rng, code) for _ in range(600)]
    new = [words()[code][form][n] for form in problems.FORMS.values() for n in problems.NEW]
    unseen = [re.compile(re.sub(r"\\{.\\}", r"[\\w ]+", re.escape(text))) for text in new]
    frames = [words()[each][part] for each in LANGUAGES for part in ("question", "answer")]
    for row in rows:
        text = row["prompt"] + row["answer"]
        assert not CALCULATION.search(text)
        assert not any(frame in text for frame in frames)
        assert not any(pattern.search(text) for pattern in unseen), text
    assert any(row["prompt"] == "" for row in rows)
    starts = Counter(row["prompt"].partition(":")[0] for row in rows)
    assert abs(starts["English"] - starts[words()[code]["name"]]) < 100


@pytest.mark.parametrize(
    ("answers", "operation", "both_right", "swapped"),
    [
        ([" 9 + 6 = 15.", " 9 - 6 = 3."], 1, 1, 0),
        ([" 9 + 6 = 14.", " 9 - 6 = 3. The 4"], 1, 0, 0),
        ([" 9 + 6 = 15.", " 9 + 6 = 15."], 0, 0, 0),
        ([" 9 - 6 = 3.", " 9 + 6 = 15."], 0, 0, 1),
        (["15", "3"], 0, 1, 0),
        (["", "apples"], 0, 0, 0),
    ],
)
def test_generated_answers_are_scored_by_operation_and_by_number(
    answers, operation, both_right, swapped
):
    found = {"operation": operation, "both_right": both_right, "swapped": swapped}
    assert score_answers(ITEM, answers) == found
    assert score_result(ITEM, answers) == {"both_right": both_right}


@pytest.mark.parametrize(
    ("odds", "order", "both_right"),
    [((-1, 1), 1, 1), ((-3, -1), 1, 0), ((1, -1), 0, 0), ((2, 2), 0.5, 0)],
)
def test_the_order_is_free_of_a_leaning_towards_one_operation(odds, order, both_right):
    scores = [(value, False) for each in odds for value in (-5.0, each - 5.0)]
    assert score_order(ITEM, scores) == {"order": order, "both_right": both_right}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a folder with a few rows and the tasks on a few items."""
    monkeypatch.setattr(data, "TRAIN_ROWS", 20)
    monkeypatch.setattr(data, "TEST_ITEMS", 60)
    for name in ("data", "tasks"):
        (tmp_path / name).mkdir()
    data.write_data(tmp_path / "data")
    data.write_smol_tasks(tmp_path / "tasks", Path("/tasks"))
    return tmp_path


def test_rows_items_and_tasks_stay_as_they_are(written):
    """Experts were trained and answers stored with these: another byte needs another VERSION."""
    files = sorted(path for path in written.rglob("*") if path.is_file())
    assert len(files) == 75
    content = (str(path.relative_to(written)).encode() + path.read_bytes() for path in files)
    assert hashlib.sha256(b"".join(content)).hexdigest()[:16] == "61f47f304648db43"


def test_floors_are_those_of_rules_that_see_the_numbers_alone(written):
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda loader, node: node.value)
    floors = {
        path.stem: floor_of(yaml.load(path.read_text(), loader)["metadata"]).score
        for path in written.glob("tasks/smol_math*.yaml")
    }
    assert {score for name, score in floors.items() if "order" in name} == {0.5}
    assert {score for name, score in floors.items() if "order" not in name} == {0.0}
    assert word_blind_floor([[("9 and 6", 15)], [("9 of 6", 3)], [("1, 2", 3)]]).score == 2 / 3
