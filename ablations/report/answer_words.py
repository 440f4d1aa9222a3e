"""Answers in words, for a terminal and for pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ablations.runs.answered import AnsweredItem, ModelAnswer
from ablations.scoring.observed import LANGUAGE_FIDELITY
from layerswap_method.errors import printable

_HIDDEN = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Signs that turn the direction of a text or end a line, and halves of signs, which nothing shows.

Joiners (U+200C, U+200D) stay: Bengali and Telugu are written with them.
"""

NO_FILTER = "none"
"""lm-eval's name of the filter of a task that has none."""

ANSWER_KINDS = {
    "right": "right",
    "wrong": "wrong",
    "cut": "cut off",
    "empty": "empty",
    "foreign": "not in the language",
}
"""Kinds of answers by which a page filters, and their names."""

_SHORT = 40
"""Characters of a text that the line of an item shows."""

_VERDICTS = {True: "right", False: "wrong", None: "neither right nor wrong"}


def visible(text: str) -> str:
    r"""Return `text` with signs that a terminal or a browser obeys as ``\x1b`` or ``\u202e``.

    Tabs and line breaks stay.
    """
    return _HIDDEN.sub(lambda sign: f"\\u{ord(sign[0]):04x}", printable(text))


def markdown_text(text: str) -> str:
    """Return `text` in one line that Markdown shows as it is."""
    return re.sub(r"[\\|*_`<#&\[]", r"\\\g<0>", " ".join(visible(text).split()))


def outcome_text(answer: ModelAnswer) -> str:
    """Return right or wrong, and what is odd about an answer."""
    parts = [_VERDICTS[answer.is_right]]
    if answer.is_cut:
        parts.append("cut off at the token limit")
    if answer.is_empty:
        parts.append("empty")
    if answer.verdict:
        parts.append(f"program {answer.verdict}")
    return ", ".join(parts)


def kinds_of(answer: ModelAnswer) -> list[str]:
    """Return which of `ANSWER_KINDS` an answer is."""
    has = {
        "right": answer.is_right is True,
        "wrong": answer.is_right is False,
        "cut": answer.is_cut,
        "empty": answer.is_empty,
        "foreign": answer.values.get(LANGUAGE_FIDELITY) == 0,
    }
    return [kind for kind in ANSWER_KINDS if has[kind]]


def line_text(item: AnsweredItem, answer: ModelAnswer) -> str:
    """Return an answer in one line: outcome, what was taken, target."""
    parts = [outcome_text(answer)]
    if answer.values.get(LANGUAGE_FIDELITY) == 0:
        parts.append("not in the language")
    taken = next((texts[0] for texts in answer.taken.values() if texts), None)
    if taken is not None and max(len(taken), len(item.target)) <= _SHORT:
        parts.append(f"{taken.strip() or 'nothing'} taken, target {item.target.strip()}")
    return ", ".join(parts)


def values_text(answer: ModelAnswer) -> str:
    """Return the values of an item by metric."""
    return ", ".join(f"{name} {value:g}" for name, value in answer.values.items())


def target_text(item: AnsweredItem) -> str:
    """Return the target; of a choice its number and text."""
    choices = {str(number): text for number, text in enumerate(item.choices)}
    if item.target in choices:
        return f"{item.target}: {choices[item.target].strip()}"
    return item.target


def taken_texts(answer: ModelAnswer) -> Iterator[tuple[str, str]]:
    """Yield label and text of what each filter took; nothing where there is no filter."""
    for name, texts in answer.taken.items():
        for number, text in enumerate(texts):
            if answer.responses[number : number + 1] != (text,):
                yield f"taken by {name}", text
            elif name != NO_FILTER:
                yield f"taken by {name}", "the whole answer"


def choice_text(item: AnsweredItem, answer: ModelAnswer, number: int) -> str:
    """Return one of the choices with its log-likelihood in nats; a star is at the highest."""
    response, mark = answer.responses[number], "*" if number == answer.likeliest else " "
    text = item.choices[number] if number < len(item.choices) else ""
    return f"{mark} {number} {response[0]:9.3f} {text}"
