r"""Answers in LaTeX: how ``\boxed{...}`` is found in text, and when two are equal.

Compared are numbers and fractions by their value, lists and sets of them in any order (``1, 2, 2``
is not ``1, 2``), tuples and intervals in theirs, and everything else as text after the
normalisation that lm-eval's `hendrycks_math` has. No algebra is done: ``n(n-1)`` is not ``n^2-n``,
and ``\sqrt{8}`` is not ``2\sqrt{2}``. Nothing of an answer is evaluated, and time grows as its
length.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lm_eval.tasks.hendrycks_math.utils import strip_string

from ablations.tasks.numbers import read_number

_MOST_CHARACTERS, _MOST_LEVELS = 2_000, 20
"""Longest answer that is compared (PolyMath's longest has 273), and deepest list in it."""

_BRACE = re.compile(r"(?P<box>\\boxed\s*\\?)?\{|\}")
_FRACTION = re.compile(r"(-?)(?:\\frac\{(-?\d+)\}\{(-?\d+)\}|(\d+)/(\d+))")
_SPELLINGS = (
    (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\?\$|(?<!\\)\\[()\[\]]", ""),
    (r"\{,\}", ","),  # between groups of digits
    (r"\\([{}])", r"\1"),
    (r"(?<=\S)\s*\\text\s*\{[^{}]*\}\s*$", ""),  # a unit
    (r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r"\1"),
    (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
    (r"\\([gl])eq(?:slant)?(?![A-Za-z])", r"\\\1e"),
    (r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])|~|\s+", " "),
)
"""Text that does not count in an answer -> the text that stands for it."""


def first_boxed(
    responses: Sequence[Sequence[str]], items: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    r"""Return, for every response, what is in its first ``\boxed{...}``.

    A form of lm-eval's filter ``custom``. The first one counts, as in PolyMath's own
    `eval/run_eval.py`; where there is none it is ``[invalid]``, as of lm-eval's own filters.
    """
    return [[_first_boxed(text) for text in texts] for texts in responses]


def _first_boxed(text: str) -> str:
    opened: list[tuple[int, bool]] = []  # where the content begins, and whether that is a box
    boxes: list[tuple[int, int]] = []
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            opened.append((brace.end(), brace["box"] is not None))
        elif opened:
            start, is_box = opened.pop()
            boxes += [(start, brace.start())] * is_box
    if not boxes:
        return "[invalid]"
    start, end = min(boxes)
    # PolyMath's instruction shows the box as \boxed\{\}.
    return text[start:end].removesuffix("\\").strip()


def boxed_match(references: Sequence[str], predictions: Sequence[str], **_options: object) -> float:
    """Return 1.0 when the two are the same answer, else 0.0: lm-eval's form of a metric."""
    (reference,), (prediction,) = references, predictions
    if len(prediction) > _MOST_CHARACTERS:
        return 0.0
    return float(_value(_plain(prediction)) == _value(_plain(reference)))


def _plain(answer: str) -> str:
    """Return an answer without what does not count: dollar signs, spaces, fonts, `x=`."""
    for pattern, usual in _SPELLINGS:
        answer = re.sub(pattern, usual, answer)
    text = answer.strip().rstrip(".。।")
    try:
        return str(strip_string(text))
    except (AssertionError, IndexError, ValueError):  # LaTeX that it does not expect
        return text.replace(" ", "")


def _value(text: str, level: int = 0) -> Hashable:
    """Return what is equal for two equal answers: a number, its items, or the text itself."""
    bracketed = text.startswith(("(", "["))  # (3,200) is a pair
    if not bracketed and (number := read_number(text)) is not None:
        return Fraction(number)
    if (match := _FRACTION.fullmatch(text)) is not None:
        upper, lower = int(match[2] or match[4]), int(match[3] or match[5])
        if lower:
            return Fraction(-upper if match[1] else upper, lower)
    parts, end = _split(text)
    is_enclosed = text[:1] in {"(", "[", "{"} and end == len(text) - 1
    if is_enclosed:
        parts, _ = _split(text[1:-1])
    if level == _MOST_LEVELS or (len(parts) == 1 and not is_enclosed):
        return text
    if len(parts) == 1:
        return _value(parts[0], level + 1)
    values = [_value(part, level + 1) for part in parts]
    # Some of PolyMath's sets are written without their braces.
    is_set = not (is_enclosed and bracketed)
    return frozenset(Counter(values).items()) if is_set else (text[0], *values, text[-1])


def _split(text: str) -> tuple[list[str], int]:
    """Return the parts between commas outside of brackets, and where the first bracket closes."""
    parts, start, depth, end = list[str](), 0, 0, -1
    for place, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            end = place if depth == 0 and end < 0 else end
        elif letter == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]], end
