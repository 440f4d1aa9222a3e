"""Numbers in answers: what is found, what is equal, and what is not."""

import re
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.tasks.numbers import _ONCE, NUMBER, answer_pattern, exact_match, read_number
from tools.task_languages import load_languages

FULL_WIDTH = str.maketrans("0123456789,.-", "０１２３４５６７８９，．－")
BENGALI = str.maketrans("0123456789", "০১২৩৪৫৬৭৮৯")
TELUGU = str.maketrans("0123456789", "౦౧౨౩౪౫౬౭౮౯")


def _equal(one: str, other: str) -> bool:
    return exact_match(references=[one], predictions=[other]) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        *("1080", "1,080", "1080.0", "1,080.00", " 1080", "1080.", "1080。", "1080।", "$1,080"),
        *("¥1080", "₹1,080", "৳1080", "1080%", "(1080)", "**1080**", "01080"),
        *("１０８０", "１，０８０", "১০৮০", "১,০৮০", "౧౦౮౦", "౧,౦౮౦"),
    ],
)
def test_the_same_number_written_otherwise_is_right(answer: str) -> None:
    assert _equal("1,080", answer)
    assert _equal("1080", answer)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        *(("35", "3.5"), ("35", "-35"), ("35", "3 5"), ("35", "350"), ("35", "35.1")),
        ("35", "3,5"),
        *(("35", ""), ("35", "[invalid]"), ("35", "thirty-five"), ("35", "35 or 36"), ("5", "-5")),
        *(("1080", "1.080"), ("1080", "1,08"), ("7", "7万"), ("0", ""), ("35", "३ ५")),
    ],
)
def test_another_number_or_none_is_wrong(expected: str, answer: str) -> None:
    assert not _equal(expected, answer)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1,00,000", 100_000), ("12,34,567.5", "1234567.5"), (".5", "0.5"), ("5.", 5)),
        *((text, -5) for text in ("-5", "−5", "－５", "-$5", "$-5", "-5.0", "-৫")),
    ],
)
def test_indian_groups_decimals_and_all_minus_signs_are_read(text: str, number: int | str) -> None:
    assert read_number(text) == Decimal(number)


def test_a_gold_answer_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="the gold answer 'many' is not a number"):
        exact_match(references=["many"], predictions=["1"])


@given(st.integers(-(10**9), 10**9), st.sampled_from([FULL_WIDTH, BENGALI, TELUGU, {}]))
def test_every_script_and_grouping_reads_back(number: int, script: dict[int, str]) -> None:
    for text in (f"{number}", f"{number:,}", f"{number}.0", f"{number:,}.00"):
        assert read_number(text.translate(script)) == number
    assert read_number(f"{number + 1}".translate(script)) != number


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("74-35=39個のチョコレートが残っている。答えは39個。", "39"),
        ("5 + 6 = 11. The answer is 11.", "11"),
        ("She pays $1,080.50 in total.", "$1,080.50"),
        ("35-2", "2"),
        ("x-5", "5"),
        ("from 10 to -5", "-5"),
        ("答えは-5です", "-5"),
        ("উত্তর হল ১,০৮০।", "১,০৮০"),
        ("సమాధానం 39.చాక్లెట్‌లు", "39"),
        ("on pages 10,20", "20"),
        ("... so ...10", "10"),
        ("18%", "18"),
        ("1,0800", "0800"),
        ("1234,567", "567"),
    ],
)
def test_the_last_number_of_a_text_is_found(text: str, last: str) -> None:
    assert re.findall(NUMBER, text)[-1] == last


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=5))
def test_numbers_in_prose_are_found_one_by_one(numbers: list[int]) -> None:
    text = " and ".join(f"{number:,} mangoes" for number in numbers)
    assert [read_number(each) for each in re.findall(NUMBER, text)] == numbers


ENDLESS = {"11,": 1, "1,11,11.": 1, "7": 1, ",": 0, " ": 0, "-": 0, "...5,11": 0, "so 1,11 is ": 0}
"""What an answer may consist of -> how many numbers follow the phrase before it."""


def test_work_on_an_endless_answer_grows_as_its_length() -> None:
    """As the square of its length it would be hours of CPU time; what is allowed is a minute."""
    script = f"""
import re, resource
from ablations.tasks.numbers import NUMBER, answer_pattern, read_number
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for piece, follow in {ENDLESS}.items():
    text = piece * 200_000
    assert re.findall(NUMBER, text + " and 5")[-1] == "5"
    assert len(re.findall(answer_pattern("Jibu ni"), "Jibu ni " + text)) == follow
    assert (read_number(text) is None) == (piece != "7")
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@given(st.text("12,.-$ a，．", max_size=24))
def test_what_saves_time_changes_no_number(text: str) -> None:
    slow = NUMBER.replace(_ONCE, "")
    assert slow != NUMBER
    assert re.findall(NUMBER, text) == re.findall(slow, text)


SOLUTIONS = {
    "en": ("Five and six make 11. The answer is {}.", "so the answer is {} mangoes, not 7."),
    "sw": ("5 + 6 = 11. Jibu ni {}.", "Kwa hivyo, jibu ni {}. Swali lilikuwa rahisi."),
    "te": ("5+6=11. సమాధానం {}.", "5+6=11 కాబట్టి సమాధానం {}.చాక్లెట్‌లు"),
    "bn": ("5 + 6 = 11। উত্তর হল {}।", "তাই উত্তর হল {}টি আম।"),
    "ja": ("5+6=11。答えは{}です。", "だから、答えは{}個。"),
}


@pytest.mark.parametrize("code", SOLUTIONS)
@pytest.mark.parametrize("number", ["1,080", "-3.5", "$8", "১১"])
def test_strict_extraction_reads_what_follows_the_phrase(code: str, number: str) -> None:
    words = load_languages()[code].mgsm
    assert words is not None
    for solution in SOLUTIONS[code]:
        assert re.findall(answer_pattern(*words.phrases), solution.format(number))[0] == number


@pytest.mark.parametrize("code", SOLUTIONS)
def test_strict_extraction_needs_the_phrase_and_a_number_after_it(code: str) -> None:
    words = load_languages()[code].mgsm
    assert words is not None
    pattern = answer_pattern(*words.phrases)
    for other, solutions in SOLUTIONS.items():
        found = re.findall(pattern, solutions[0].format(11))
        assert found == (["11"] if other == code else [])
    # Nor punctuation for space: why, is in ablations/tasks/README.md.
    for rest in ("", " many", " about 11", ": 11", "：11", " = 11", " **11**", " x = 11"):
        assert not re.findall(pattern, words.phrases[0] + rest)
