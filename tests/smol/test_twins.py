"""Problems in pairs: nothing but the verb tells them apart, and no language expert calculates."""

import random
import re
from collections import Counter

import pytest
import yaml

from ablations.smol import data, twins
from ablations.smol.exercises import join
from ablations.smol.languages import LANGUAGES, TARGETS, table
from ablations.tasks.floors import floor_of, word_blind_floor
from ablations.tasks.twins import score_answers, score_order, score_result

ITEM = {"prompts": ["g", "l"], "solutions": [" 9 + 6 = 15.", " 9 - 6 = 3."], "answers": [15, 3]}
CALCULATION = re.compile(r"\d\s*[-+*/=]\s*\d")


@pytest.mark.parametrize("verbs", [twins.TRANSLATED, twins.NEW])
def test_twins_differ_in_the_verb_alone_in_every_language(verbs):
    rng = random.Random(1)
    for _ in range(200):
        gain, loss = twins.draw_twins(rng, "test", verbs)
        assert (gain.sentences[0], gain.sentences[2]) == (loss.sentences[0], loss.sentences[2])
        assert gain.sentences[1].slots == loss.sentences[1].slots
        assert {s.sentences[1].number for s in (gain, loss)} <= set(verbs)
        for code in LANGUAGES:
            texts = [join(problem.sentences, code) for problem in (gain, loss)]
            numbers = [re.findall(r"\d+", text) for text in texts]
            assert numbers[0] == numbers[1] == [str(gain.steps[0].left), str(gain.steps[0].right)]
            assert texts[0] != texts[1]
        assert gain.answer == gain.steps[0].left + gain.steps[0].right
        assert loss.answer == gain.steps[0].left - gain.steps[0].right > 0


def content(problem):
    step = problem.steps[0]
    return (step.left, step.right), problem.sentences[0].slots["o"]


def test_numbers_and_things_of_the_test_are_in_no_row():
    drawn = {
        split: [content(twins.draw_twins(random.Random(i), split)[0]) for i in range(1000)]
        for split in ("train", "test")
    }
    for part in (0, 1):
        learned, tested = ({each[part] for each in drawn[split]} for split in ("train", "test"))
        assert learned
        assert tested
        assert not learned & tested
    tested = {numbers for numbers, _ in drawn["test"]}
    assert all(b < a % 10 for a, b in tested)  # no borrowing


@pytest.mark.parametrize("code", TARGETS)
def test_a_language_expert_learns_words_and_no_calculation(code):
    """No frame of a problem, no calculation, no new verb; and half of the verbs permuted."""
    rng = random.Random(2)
    rows = [twins.language_row(rng, code) for _ in range(600)]
    new = [table()[code][form][number] for form in twins.FORMS.values() for number in twins.NEW]
    patterns = [re.escape(each).replace(r"\{", "{").replace(r"\}", "}") for each in new]
    unseen = [re.compile(re.sub(r"{.}", r"[\\w ]+", each)) for each in patterns]
    frames = [table()[each][part] for each in LANGUAGES for part in ("question", "answer")]
    for row in rows:
        text = row["prompt"] + row["answer"]
        assert not CALCULATION.search(text)
        assert not any(frame in text for frame in frames)
        assert not any(pattern.search(text) for pattern in unseen), text
    assert any(row["prompt"] == "" for row in rows)
    starts = Counter(row["prompt"].partition(":")[0] for row in rows)
    assert abs(starts["English"] - starts[table()[code]["name"]]) < 100


def test_permuted_verbs_mean_other_verbs_half_of_them_the_other_operation():
    gains = [twins.Sentence("twin_gain", number) for number in twins.TRANSLATED]
    changed = [twins._permuted(each) for each in gains]
    assert [each.form for each in changed].count("twin_loss") == len(gains) / 2
    assert all(
        (a.form, a.number) != (b.form, b.number) for a, b in zip(gains, changed, strict=True)
    )


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
    assert score_answers(ITEM, answers) == {
        "operation": operation, "both_right": both_right, "swapped": swapped
    }  # fmt: skip
    assert score_result(ITEM, answers) == {"both_right": both_right}


@pytest.mark.parametrize(
    ("odds", "order", "both_right"),
    [((-1, 1), 1, 1), ((-3, -1), 1, 0), ((1, -1), 0, 0), ((2, 2), 0.5, 0)],
)
def test_the_order_is_free_of_a_leaning_towards_one_operation(odds, order, both_right):
    found = [(value, False) for each in odds for value in (-5.0, each - 5.0)]
    assert score_order(ITEM, found) == {"order": order, "both_right": both_right}


def test_floors_are_those_of_rules_that_see_the_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "TEST_ITEMS", 60)
    data.write_tasks(tmp_path, tmp_path)
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda loader, node: node.value)
    floors = {
        path.stem: floor_of(yaml.load(path.read_text(), loader)["metadata"])
        for path in tmp_path.glob("smol_math*.yaml")
    }
    assert {round(floors[name].score, 2) for name in floors if "order" in name} == {0.5}
    others = [floors[name].score for name in floors if "twins" in name and "order" not in name]
    assert others
    assert set(others) == {0.0}
    assert floors["smol_math_es"].score > 0.3
    assert word_blind_floor([[("9 and 6", 15)], [("9 of 6", 3)], [("1, 2", 3)]]).score == 2 / 3
