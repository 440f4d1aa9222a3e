"""The exception tree of the project. Knows how an error reads; not where it is raised.

    LayerSwapError          exit code 1: something failed that the user may not have caused
    └── InputError          exit code 2: what the user wrote (recipe, option, path) is wrong

Both are ``click.ClickException``: `mergekit-yaml` and `layerswap` are click commands, so the
message reaches the user as one text without a traceback, while a bug keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click


class LayerSwapError(click.ClickException):
    """A failure with one clear message: what, where, what to do. Exit code 1."""

    exit_code = 1


class InputError(LayerSwapError):
    """The input is wrong in a way its author can mend. Exit code 2."""

    exit_code = 2
    problems: tuple[str, ...] = ()
    """What `from_problems` listed, one by one; () for an error of one text."""

    @classmethod
    def from_problems(cls, where: str, problems: Sequence[str]) -> InputError:
        """Return one error that lists every problem of a file or recipe at once.

        A problem of several lines, such as another such list, stands indented below its first.
        """
        lines = [problem.replace("\n", "\n    ") for problem in problems]
        listed = "\n".join(f"  - {problem}" for problem in lines)
        one = f"{where}: {problems[0]}" if len(problems) == 1 else ""
        error = cls(one or f"{where}: {len(problems)} problems\n{listed}")
        error.problems = tuple(problems)
        return error


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the valid name closest to `name`, or ``""``.

    Small and capital letters count as the same: ``MGSM`` is close to ``mgsm``.
    """
    lowered = {choice.lower(): choice for choice in sorted(choices)}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return f"; did you mean {lowered[found[0]]!r}?" if found else ""


def nearest_of(name: str, choices: Iterable[str]) -> str:
    """Return what `nearest` says, and all valid names: they are few."""
    known = list(choices)
    return with_valid(nearest(name, known), known)


def with_valid(text: str, choices: Iterable[str]) -> str:
    """Return the text of an error, followed by all valid names."""
    names = f"alid are {', '.join(choices)}"
    return f"{text} V{names}" if text.endswith("?") else f"{text}; v{names}"


def first_line(error: BaseException) -> str:
    """Return the first line that a foreign exception says; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def describe_error(error: BaseException) -> str:
    """Return a foreign exception as one line: its type and the first two lines it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or '(no message)'}"
