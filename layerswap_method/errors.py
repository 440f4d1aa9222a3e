"""The errors of the project, and texts for them.

    LayerSwapError        something failed
    `-- InputError        what the user wrote is wrong

A folder that raises an error of its own, such as a model that an engine cannot take, derives it
from these. What they look like to a user is in `command_line.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class LayerSwapError(Exception):
    """Something failed that the user may not have caused; the message says where and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes an equal error in another process, whatever its type is made from."""
        return _made_again, (type(self), self.args), self.__dict__

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook (IPython) shows in place of the traceback: kind and message."""
        return [f"{type(self).__name__}: {printable(self.message)}"]


def _made_again(kind: type[LayerSwapError], args: tuple[Any, ...]) -> LayerSwapError:
    return kind.__new__(kind, *args)


class InputError(LayerSwapError):
    """A recipe, an option or a path of the user is wrong."""

    problems: tuple[str, ...] = ()
    """The list of `from_problems`, one by one; () for an error of one text."""

    @classmethod
    def from_problems(cls, where: str, problems: Sequence[str]) -> InputError:
        """Return one error that lists every problem of a file or recipe at once.

        A problem of several lines, such as another such list, stands indented below its first.
        """
        if len(problems) == 1:
            error = cls(f"{where}: {problems[0]}")
        else:
            listed = ["  - " + problem.replace("\n", "\n    ") for problem in problems]
            error = cls("\n".join([f"{where}: {len(problems)} problems", *listed]))
        error.problems = tuple(problems)
        return error

    @classmethod
    def raise_any(cls, where: str, problems: Iterable[str]) -> None:
        """Raise `from_problems` of all problems; do nothing where there is none."""
        if listed := list(problems):
            raise cls.from_problems(where, listed)


@contextmanager
def input_errors(where: str) -> Iterator[None]:
    """Make a ValueError the `InputError` of the recipe `where`."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def printable(text: str) -> str:
    r"""Return `text` with control characters as ``\x1b``: a terminal obeys none of them.

    So are those that turn the direction of the text around them (``\u202e``), and lone surrogates.
    Tabs and line breaks stay.
    """
    return _OBEYED.sub(
        lambda c: f"\\x{ord(c[0]):02x}" if c[0] < "\u0100" else ascii(c[0])[1:-1], text
    )


_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_SHORT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "half": "float16"}
"""What users write for the name of a dtype."""


def nearest(name: str, choices: Iterable[str], cutoff: float | None = None) -> str:
    """Return ``"; did you mean 'x'?"`` for the name closest to `name`, in any case, or ``""``.

    Of two letters, such as a language code, one that differs makes another name: only their case
    may. Of three, half may differ. Of a long name, so many that differ are another word. Of
    thousands of choices some are near: they need a `cutoff`, at most 1, which is the name itself.
    """
    lowered = {choice.lower(): choice for choice in sorted(choices)}
    if cutoff is None:
        cutoff = 1 if len(name) < 3 else 0.5 if len(name) == 3 else 0.6
    lower = name.lower()
    close = difflib.get_close_matches(_SHORT.get(lower, lower), lowered, n=1, cutoff=cutoff)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


def nearest_of(name: str, choices: Iterable[str]) -> str:
    """Return the hint of `nearest`, followed by all valid names."""
    names = list(choices)
    return with_valid(nearest(name, names), names)


def with_valid(text: str, choices: Iterable[str]) -> str:
    """Return the text of an error, followed by all valid names."""
    return f"{text}{' Valid' if text.endswith('?') else '; valid'} are {', '.join(choices)}"


def counted(count: int, thing: str) -> str:
    """Return ``1 cell`` or ``2 cells``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def size_text(*sizes: float) -> str:
    """Return bytes as ``21.9 MB``; of several ``18 of 27 GB``, all in the unit of the last."""
    last = sizes[-1]
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
    name, unit = next((one for one in units if last >= one[1]), units[-1])
    return f"{' of '.join(f'{size / unit:.3g}' for size in sizes)} {name}"


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign exception's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_json_error(error: Exception) -> str:
    """Return what is wrong with one line of a file of JSON lines.

    json itself counts lines, too, so that a reader would see two numbers of lines.
    """
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}, column {error.colno}"
    return f"not JSON: {error}"


def describe_error(error: BaseException) -> str:
    """Return a foreign exception as one line: its type and the first two lines it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or '(no message)'}"
