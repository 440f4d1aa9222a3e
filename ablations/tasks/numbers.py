"""Numbers in answers: how they are found in text, and when two are equal.

The digits of any script are read (1080, １０８０, ১০৮০, ౧౦౮౦), commas between groups of digits
(1,080 and the Indian 1,00,000), a decimal point, a minus sign and a currency sign before the
number. Number words and units (7万), fractions and a decimal comma are not: in all five languages
of the suite a comma groups.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

_MINUS = "[-−－]"
_CURRENCY = "[$€£¥₹৳＄￥]"
_COMMA = "[,，]"
_POINT = "[.．]"
_ONCE = (
    rf"(?:(?=\d(?!\d))|(?<![^\d.．]\d{_COMMA})(?<![^\d.．]\d\d{_COMMA})(?<![^\d.．]\d\d\d{_COMMA}))"
)
"""Fails inside a row of groups (11,11,11) that was read from its beginning and holds no further
grouped number. Without it every group would read to the end of the row again, which takes as long
as the square of its length. A group of one digit begins a row, and so may one after a point."""

_GROUPED = rf"(?<!\d){_ONCE}\d{{1,3}}(?:{_COMMA}\d{{2,3}})*{_COMMA}\d{{3}}(?!\d)"

NUMBER = (
    # A minus after a digit, a Latin letter or a bracket is an operation: 35-2 holds no -2.
    rf"(?:(?<![\dA-Za-z)\]]){_MINUS})?(?:{_CURRENCY}{_MINUS}?)?"
    rf"(?:(?:{_GROUPED}|\d+)(?:{_POINT}\d+)?|(?<![\d.．]){_POINT}\d+)"
)
"""Regular expression of one number, without a group."""

_MARKS_AROUND = " \t\r\n.,。،।:;!?*_'\"()[]%％"


def answer_pattern(*phrases: str) -> str:
    """Return the regular expression of the number after one of `phrases`, in its only group.

    A phrase may be in small or capital letters; between it and the number may stand space only.
    """
    return rf"(?i:{'|'.join(map(re.escape, phrases))})\s*({NUMBER})"


def number_after_prefix(
    responses: Sequence[Sequence[str]], items: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
    """Return, for every response, the number after the item's `answer_prefix` and a colon.

    A form of lm-eval's filter ``custom``. Of several the last one counts, as the items say that
    the answer ends with it; where there is none it is ``[invalid]``, as of lm-eval's own filters.
    Between prefix and number may stand space and the stars of bold text.
    """
    answers = []
    for texts, item in zip(responses, items, strict=True):
        prefix = re.escape(item["answer_prefix"].rstrip(":： "))
        pattern = re.compile(rf"(?i:{prefix})[\s*]*[:：][\s*]*({NUMBER})")
        answers.append([([*pattern.findall(text)] or ["[invalid]"])[-1] for text in texts])
    return answers


def read_number(text: str) -> Decimal | None:
    """Return the number that `text` is, or None when it is none, or more than one.

    Space and punctuation around it, a currency sign before it and a percent sign after it do not
    count: ``" $1,080.00."`` is 1080.
    """
    plain = text.strip(_MARKS_AROUND)
    # A leading point belongs to the number (".5"); as punctuation it would have gone, too.
    if re.fullmatch(rf"{_POINT}\d+", text.strip()):
        plain = text.strip()
    if re.fullmatch(NUMBER, plain) is None:
        return None
    digits = "".join(
        str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in plain
    )
    ungrouped = re.sub(f"{_COMMA}|{_CURRENCY}", "", digits)
    return Decimal(re.sub(_POINT, ".", re.sub(_MINUS, "-", ungrouped)))


def exact_match(references: Sequence[str], predictions: Sequence[str], **_options: object) -> float:
    """Return 1.0 when the two are the same number, else 0.0: lm-eval's form of a metric.

    Text is never compared: 3.5 is not 35, which they are once punctuation is dropped, and an
    answer without a number is wrong.

    Raises:
        ValueError: when the reference is not a number: then the data is not what it is taken for.
    """
    (reference,), (prediction,) = references, predictions
    expected = read_number(str(reference))
    if expected is None:
        raise ValueError(f"the gold answer {reference!r} is not a number")
    return float(read_number(str(prediction)) == expected)
