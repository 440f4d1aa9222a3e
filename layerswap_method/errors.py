"""The errors of the project, and texts for them.

`mergekit-yaml` and `layerswap` are click commands: a message without a traceback is theirs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click


class LayerSwapError(click.ClickException):
    """Something failed that the user may not have caused: what, where, what to do. Exit code 1."""

    exit_code = 1


class InputError(LayerSwapError):
    """What the user wrote (recipe, option, path) is wrong. Exit code 2."""

    exit_code = 2
    problems: tuple[str, ...] = ()
    """What `from_problems` listed, one by one; () for an error of one text."""

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


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the name closest to `name`, in any case, or ``""``."""
    lowered = {choice.lower(): choice for choice in sorted(choices)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


def nearest_of(name: str, choices: Iterable[str]) -> str:
    """Return the hint of `nearest`, followed by all valid names."""
    known = list(choices)
    return with_valid(nearest(name, known), known)


def with_valid(text: str, choices: Iterable[str]) -> str:
    """Return the text of an error, followed by all valid names."""
    return f"{text}{' Valid' if text.endswith('?') else '; valid'} are {', '.join(choices)}"


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign exception's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_error(error: BaseException) -> str:
    """Return a foreign exception as one line: its type and the first two lines it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or '(no message)'}"


def parse_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Return the bytes of an option as mergekit writes it, such as 5B, 500M or 100000."""
    match = re.fullmatch("([1-9][0-9]*)([KMB]?)", value.upper())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size; write bytes, or a number with K, M, B")
    return int(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}[match[2]]
