"""Answers in boxes, and which of them are the same."""

import time

import pytest

from ablations.tasks.boxed import boxed_match, first_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{7}$.", "7"),
        (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        (r"\boxed {7} or \boxed{8}", "7"),
        (r"\boxed\{7\}", "7"),  # as PolyMath's request has it
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{x = \boxed{7}}", r"x = \boxed{7}"),
        (r"\boxed{7 \boxed{8}", "8"),
        (r"\boxed{7", "[invalid]"),
        (r"} \boxed 7 {8}", "[invalid]"),
        ("7", "[invalid]"),
    ],
)
def test_the_first_box_that_closes_is_read(text, answer):
    assert first_boxed([[text], ["", text]], [{}, {}]) == [[answer], ["[invalid]", answer]]


SAME = [
    ("18", "18.0", "$18$", "১৮", r"18\text{ dollars}", r"\text{18}", "x = 18", r"18^\circ", "(18)"),
    ("1080", "1,080", r"\$1080", "1080.", "1{,}080", r"1\,080", "1\u202f080", "١٬٠٨٠"),
    (r"$\frac{5}{4}$", r"\dfrac54", "5/4", "1.25", r"\frac{10}{8}", r"\frac{-5}{-4}"),
    (r"$-\frac{1}{2}$", r"\frac{-1}{2}", "-1/2", "-0.5", "-.5"),
    (r"${2, -2, \frac{1}{2}}$", r"\left\{\frac12, 2, -2\right\}", "0.5, 2, -2", r"\{1/2,2,-2\}"),
    ("(1,4,4), (2,4,4)", r"\{(2, 4, 4), (1, 4, 4)\}", r"(2,4,4),\ (1,4,4)"),
    ("$[2,3)$", r"\left[2, 3\right)", r"[2.0,\,3)"),
    ("(3,200)", "(3, 200)"),
    (r"$b \geq $-\frac{2}{3}$", r"b\geqslant-\tfrac{2}{3}", r"b \ge -\frac23"),
    (r"$2 \sqrt{2}$", r"2\sqrt2", r"2 \, \sqrt{2}"),
    ("$f(x) = x + 1$", "f(x)=x+1"),
    (r"$\frac{1}{0}$", r"\dfrac{1}{0}"),
    (r"$\sqrt$", r"\sqrt"),  # LaTeX that lm-eval's normalisation does not expect
    (r"$x / 4 - y / 2 + \dfrac{z}{3}$", r"x/4-y/2+\frac{z}{3}"),
]
"""Answers that are the same; no two rows are."""


@pytest.mark.parametrize("number", range(len(SAME)))
def test_an_answer_is_the_same_however_it_is_written(number):
    gold, *others = SAME[number]
    for answer in (gold, *others):
        assert boxed_match([gold], [answer]) == 1.0, answer
    for row in SAME[:number] + SAME[number + 1 :]:
        for answer in row:
            assert boxed_match([gold], [answer]) == 0.0, answer


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("$[2,3)$", "(2,3)"),
        ("(1,4,4), (2,4,4)", "(4,1,4), (2,4,4)"),
        ("$(3,2)$", "(2,3)"),
        ("(3,200)", "3,200"),
        ("${2, -2}$", r"\{2\}"),
        ("${1, 2, 2}$", r"\{1, 2\}"),
        ("18", "81"),
        ("18", "[invalid]"),
        ("18", ""),
        ("18", "1+17"),
        # Algebra is not done, which docs/evaluate.md says.
        ("$n(n-1)$", "n^2-n"),
        (r"$2 \sqrt{2}$", r"\sqrt{8}"),
        (r"\frac{2}{3}", "0.6667"),
    ],
)
def test_another_answer_is_wrong(gold, answer):
    assert boxed_match([gold], [answer]) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "{" * 1_000_000,
        "\\boxed " + " " * 1_000_000,
        "\\boxed{" + "(" * 1_000_000 + "}",
        "\\boxed{" + "(1," * 600 + "}",
        "\\boxed{" + "(1," * 300 + "1" + ")" * 300 + "}",
        "\\boxed{" + "9" * 1_900 + "}",
        "\\boxed{" + "9^" * 900 + "9}",
        "\\boxed{" + "\\text" * 390 + "}",
        "\\boxed{__import__('os').abort()}",
    ],
)
def test_no_answer_takes_long(text):
    start = time.monotonic()
    ((answer,),) = first_boxed([[text]], [{}])
    assert boxed_match(["5"], [answer]) == 0.0
    assert time.monotonic() - start < 5
