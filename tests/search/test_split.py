"""The sides of items: by identity, the same in all languages, passages whole."""

import random

import pytest

from ablations.search.split import item_keys, split_items

PASSAGE = "The river rises in the mountains and runs to the sea, through {} towns and three lakes."


def questions(count, language):
    return [{"question": f"{language} question {n}", "answer": n} for n in range(count)]


def sides(docs, seed=0, share=0.5):
    split = split_items(*item_keys([docs]), seed, share)
    assert sorted((*split.choose, *split.report)) == list(range(len(docs)))
    return split


def parallel_sides(*tasks):
    return [split_items(keys, 0, 0.5) for keys in item_keys(tasks)]


def test_parallel_languages_have_the_same_sides_and_order():
    assert sides(questions(200, "English")) == sides(questions(200, "Spanish"))


def test_a_longer_task_leaves_items_where_they_were():
    short, long = sides(questions(60, "a")), sides(questions(200, "b"))
    assert [row for row in long.choose if row < 60] == [*short.choose]


@pytest.mark.parametrize("name", ["link", "sample_id", "id"])
def test_an_identity_is_followed_wherever_its_row_is(name):
    rows = [{name: f"x{n}", "text": f"text {n}"} for n in range(80)]
    other = [{name: f"x{n}", "text": f"andere {n}"} for n in range(80)]
    random.Random(1).shuffle(other)
    first, second = parallel_sides(rows, other)
    assert [rows[r][name] for r in first.choose] == [other[r][name] for r in second.choose]


def test_an_id_with_the_language_in_it_names_no_item_of_another_language():
    english, swahili = (
        [{"id": f"low-{code}-{n}", "question": f"{code} {n}"} for n in range(125)]
        for code in ("en", "sw")
    )
    first, *others = parallel_sides(english, swahili, questions(125, "Spanish"))
    assert others == [first, first]


def test_questions_on_one_passage_fall_on_one_side():
    docs = [
        {"passage": PASSAGE.format(n // 4), "question": f"question {n}", "head": "Read! " * 30}
        for n in range(120)
    ]
    split = sides(docs)
    passages = [{row // 4 for row in part} for part in split]
    assert not passages[0] & passages[1]
    assert all(len(part) > 8 for part in passages)  # and the instruction that all share joins none


JAPANESE = "その川は山に源を発し、{}の町と三つの湖を通って、やがて海へと流れ込んでいる。"


def test_a_passage_of_fewer_characters_that_says_as_much_is_one():
    assert len(JAPANESE) < 45
    docs = [{"passage": JAPANESE.format(n // 3), "question": f"質問 {n}"} for n in range(120)]
    assert len({*item_keys([docs])[0]}) == 40


def test_questions_on_a_passage_that_is_short_in_one_language_fall_on_one_side_in_both():
    long, short = (
        [{"passage": text.format(n // 3), "question": f"question {n}"} for n in range(120)]
        for text in (PASSAGE, "The river {}")
    )
    for tasks in ((long, short), (short, long)):
        first, second = parallel_sides(*tasks)
        assert first == second
        assert not {row // 3 for row in first.choose} & {row // 3 for row in first.report}


def test_a_passage_of_two_passages_joins_them():
    first, second = PASSAGE.format(1), PASSAGE.format(2)
    docs = [{"a": first, "b": "x"}, {"a": second, "b": "y"}, {"a": first, "b": second}]
    docs += [{"a": PASSAGE.format(n), "b": "z"} for n in range(3, 20)]
    (keys,) = item_keys([docs])
    assert len({*keys[:3]}) == 1
    assert len({*keys}) == 18


def test_equal_items_fall_on_one_side():
    docs = [{"id": n, "question": f"What is {n % 50} + 1?"} for n in range(100)]
    (keys,) = item_keys([docs])
    assert keys[:50] == keys[50:]
    assert len({*keys}) == 50


def test_seed_and_share_decide():
    docs = questions(1000, "a")
    assert sides(docs, seed=1) != sides(docs, seed=2)
    assert len(sides(docs, share=0.3).choose) == pytest.approx(300, abs=45)
    assert (sides(docs, share=1).report, sides(docs, share=0).choose) == ((), ())
