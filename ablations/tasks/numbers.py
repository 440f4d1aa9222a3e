r"""Numbers in answers: how they are found in text, and when two are equal.

The digits of any script are read (1080, １０８０, ১০৮০, ౧౦౮౦), a minus sign and a currency sign
before the number, and a decimal point. In every language groups of digits may have between them a
comma (1,080 and the Indian 1,00,000), its Arabic form (١٬٠٨٠), a space that does not break, or
LaTeX's ``{,}`` and ``\,``. What else groups, and whether a comma is the decimal sign, differs by
language (`digits` in `languages.yml`). Number words and units (7万) and fractions are not read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Literal

Separator = Literal["space", "point", "apostrophe"]
"""Sign between groups of three digits that is one in some languages only."""

DecimalSign = Literal["point", "comma"]

INVALID = "[invalid]"
"""The answer where there is none, as of lm-eval's own filters."""

_MINUS = "[-−－]"
_CURRENCY = "[$€£¥₹৳＄￥]"
_COMMA = "[,，٬]"
_POINT = "[.．٫]"
_NO_BREAK = "\u00a0\u2007\u2009\u202f"
_SIGNS: dict[Separator, str] = {"point": "[.．]", "apostrophe": "['’]"}
_ONCE = (
    rf"(?:(?=\d(?!\d))|(?<![^\d.．٫]\d{_COMMA})(?<![^\d.．٫]\d\d{_COMMA})"
    rf"(?<![^\d.．٫]\d\d\d{_COMMA}))"
)
"""Where a grouped number may begin. In a long row such as 11,11,11 it fails at all but the first
group: what can be read from there was tried. Else each group would read to the end of the row, in
time that grows as the square of its length. One digit may begin a row, and so may a group after a
point."""

_LATEX = ((r"\{([,.])\}", r"\1"), (r"\\[,:; ]", "\u2009"), (r"\\!", ""))
"""Signs in numbers as LaTeX spaces them -> the plain ones."""

_UNSEEN = "[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
"""Characters that show nothing, such as marks of the direction of text."""

_COLON = "[:：﹕∶፡፥፦៖]"
_BETWEEN = r"(?:[\s*_`]|\\?\$|\\[(\[]|\\(?:boxed|text|textbf|mathrm|mathbf)\s*\{)*+"
r"""What may stand between the words before an answer and its number: space, the marks of bold text
and of formulas, a box."""

_MARKS_AROUND = " \t\r\n.,。،।:;!?*_'\"()[]%％"


@cache
def number_pattern(groups: tuple[Separator, ...] = (), decimal: DecimalSign = "point") -> str:
    """Return the regular expression of one number: groups `sign`, `whole` and `part` or `share`.

    Args:
        groups: what may stand between groups of three digits in the language, beyond what may in
            every one.
        decimal: the decimal sign of the language; a point is one everywhere, unless it groups.
    """
    space = _NO_BREAK + (" " if "space" in groups else "")
    signs = [f"[{space}]", *(_SIGNS[name] for name in groups if name != "space")]
    wholes = [
        # 0.500 is no five hundred.
        *(rf"(?<!\d)(?![0０])\d{{1,3}}(?:{sign}\d{{3}}(?!\d))+" for sign in signs),
        rf"(?<!\d){_ONCE}\d{{1,3}}(?:{_COMMA}\d{{2,3}})*{_COMMA}\d{{3}}(?!\d)",
        r"\d+",
    ]
    point = _POINT
    if decimal == "comma":
        wholes.insert(0, rf"(?<!\d)[0０](?={_COMMA}\d)")
        point = f"(?:{_POINT}|[,，])"
    return (
        # A minus after a digit, a Latin letter or a bracket is an operation: 35-2 holds no -2.
        rf"(?P<sign>(?:(?<![\dA-Za-z)\]]){_MINUS})?(?:{_CURRENCY}{_MINUS}?)?)"
        rf"(?:(?P<whole>{'|'.join(wholes)})(?:{point}(?P<part>\d+))?"
        rf"|(?<![\d.．]){_POINT}(?P<share>\d+))"
    )


class LastNumber:
    """A filter of lm-eval that takes the last number of each response, in plain digits."""

    def __init__(self, groups: Sequence[Separator] = (), decimal: DecimalSign = "point") -> None:
        """Read numbers as `number_pattern` says."""
        self._number = number_pattern(tuple(groups), decimal)

    def apply(
        self, responses: Iterable[Sequence[str]], items: Iterable[Mapping[str, Any]]
    ) -> list[list[str]]:
        """Return the number in every response, ``[invalid]`` where there is none."""
        answers = []
        for texts, item in zip(responses, items, strict=True):
            find = self._finder(item)
            numbers = [find(plain_text(text)) for text in texts]
            answers.append([INVALID if n is None else _in_plain_digits(n) for n in numbers])
        return answers

    def _finder(self, item: Mapping[str, Any]) -> Callable[[str], re.Match[str] | None]:
        """Return the function that finds the number in a response to an item."""
        return self._last_of(self._number)

    @staticmethod
    def _last_of(pattern: str) -> Callable[[str], re.Match[str] | None]:
        compiled = re.compile(pattern)

        def last(text: str) -> re.Match[str] | None:
            match = None
            for match in compiled.finditer(text):  # noqa: B007 - the last one
                pass
            return match

        return last


class NumberAfterPhrase(LastNumber):
    """A filter that takes the first number after one of the phrases that end a solution."""

    def __init__(
        self,
        phrases: Sequence[str],
        not_after: str = "",
        groups: Sequence[Separator] = (),
        decimal: DecimalSign = "point",
    ) -> None:
        """Take the number after one of `phrases`, in small or capital letters.

        A phrase after the words `not_after` is none: Telugu's is the end of "step-by-step answer".
        """
        super().__init__(groups, decimal)
        words = "|".join(map(_words, phrases))
        before = f"(?<!{re.escape(plain_text(not_after))})" if not_after else ""
        self._pattern = re.compile(
            rf"{before}(?i:{words})[\s*_]*+{_COLON}?{_BETWEEN}{self._number}"
        )

    def _finder(self, item: Mapping[str, Any]) -> Callable[[str], re.Match[str] | None]:
        return self._pattern.search


class NumberAfterPrefix(LastNumber):
    """A filter that takes the last number after the item's `answer_prefix` and a colon."""

    def _finder(self, item: Mapping[str, Any]) -> Callable[[str], re.Match[str] | None]:
        prefix = _words(re.sub(rf"(?:{_COLON}|\s)+$", "", item["answer_prefix"]))
        return self._last_of(rf"(?i:{prefix})[\s*_]*+{_COLON}{_BETWEEN}{self._number}")


def plain_text(text: str) -> str:
    """Return text with composed letters, without what is not seen, and LaTeX's commas as plain."""
    text = re.sub(_UNSEEN, "", unicodedata.normalize("NFC", text))
    for pattern, plain in _LATEX:
        text = re.sub(pattern, plain, text)
    return text


def _words(phrase: str) -> str:
    """Return the regular expression of a phrase, with any space between its words."""
    return r"\s+".join(map(re.escape, plain_text(phrase).split()))


def _in_plain_digits(number: re.Match[str]) -> str:
    """Return a number that was found, as ``-1080.5``."""
    whole, part = number["whole"] or "0", number["part"] or number["share"]
    sign = "-" if re.search(_MINUS, number["sign"]) else ""
    return f"{sign}{_ascii(whole)}" + (f".{_ascii(part)}" if part else "")


def _ascii(digits: str) -> str:
    return "".join(str(unicodedata.decimal(sign)) for sign in digits if sign.isdecimal())


def read_number(text: str) -> Decimal | None:
    """Return the number that `text` is, or None when it is none, or more than one.

    Space and punctuation around it, a currency sign before it and a percent sign after it do not
    count: ``" $1,080.00."`` is 1080. What differs by language is not read.
    """
    text = plain_text(text)
    plain = text.strip(_MARKS_AROUND)
    # A leading point belongs to the number (".5"); as punctuation it would have gone, too.
    if re.fullmatch(rf"{_POINT}\d+", text.strip()):
        plain = text.strip()
    match = re.fullmatch(number_pattern(), plain)
    return None if match is None else Decimal(_in_plain_digits(match))


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
