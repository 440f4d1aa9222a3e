"""The command line: the project's errors as click's commands show them, and sizes.

Both `layerswap` and mergekit's own programs, which call this project's merges, are such commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from layerswap_method.errors import InputError, LayerSwapError


class ShownError(LayerSwapError, click.ClickException):  # type: ignore[misc]
    """An error that click shows as one text, without a traceback."""

    exit_code = 1


class ShownInputError(InputError, ShownError):  # type: ignore[misc]
    """A mistake in what the user wrote, as click shows it."""

    exit_code = 2


def shown(error: LayerSwapError) -> ShownError:
    """Return an error as one that click shows; who catches it as what it was still does."""
    if isinstance(error, ShownError):
        return error
    if not isinstance(error, InputError):
        return ShownError(error.message)
    wrong = ShownInputError(error.message)
    wrong.problems = error.problems
    return wrong


@contextmanager
def shown_errors() -> Iterator[None]:
    """Have the click command around this show what fails in it."""
    try:
        yield
    except LayerSwapError as error:
        raise shown(error) from error


def parse_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Return the bytes of an option; see `read_size`."""
    try:
        return read_size(value)
    except InputError as error:
        raise click.BadParameter(error.message) from error


def read_size(value: str) -> int:
    """Return the bytes of a size as mergekit writes it, such as 5B, 500M or 100000."""
    match = re.fullmatch("([1-9][0-9]*)([KMB]?)", value.upper())
    if match is None:
        raise InputError(f"{value!r} is not a size; write bytes, or a number with K, M, B")
    return int(match[1]) * {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}[match[2]]
