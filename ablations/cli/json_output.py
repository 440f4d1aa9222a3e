"""The option ``--json``: one object on stdout, the result of a command or its error."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ablations.cli.log import print_line
from layerswap_method.progress import Log

Command = TypeVar("Command", bound=Callable[..., Any])

_TEXT = "layerswap.json"
"""Key in click's context with the object of `print_json`, until stdout is free for it."""


def json_option(command: Command) -> Command:
    """Give a command ``--json``, which its function gets as `as_json`.

    If it is set, the function calls `print_json` once, as the last thing that can fail. What
    libraries print on stdout goes to stderr, and so does `print_line`. Errors need nothing: the
    command `layerswap` prints them as an object.
    """

    @functools.wraps(command)
    def call(*arguments: Any, as_json: bool, **options: Any) -> Any:
        with _free_stdout() if as_json else contextlib.nullcontext():
            return command(*arguments, as_json=as_json, **options)

    text = "Print one JSON object and nothing else on stdout, errors too (docs/python.md)."
    return cast(Command, click.option("--json", "as_json", is_flag=True, help=text)(call))


def print_json(**content: Any) -> None:
    """Print the object of a command that has `json_option`.

    Its values may hold data classes, named tuples, paths, frames (a list of their rows) and numpy's
    numbers. A number that is not finite is null: JSON has no other name for it.
    """
    click.get_current_context().meta[_TEXT] = as_json_text(content)


@contextlib.contextmanager
def printed_log(*, as_json: bool, **content: Any) -> Iterator[Log]:
    """Yield what prints a line; of a command with `json_option` then `content` and its ``lines``.

    Warnings among them go to stderr.
    """
    printed = []

    def log(line: str) -> None:
        print_line(line, err=line.startswith("Warning:"))
        printed.append(line)

    yield log
    if as_json:
        print_json(**content, lines=printed)


def refuse_json_of(*, dry_run: bool, as_json: bool) -> None:
    """Refuse ``--json`` of a command that has `json_option` and only says what it would do."""
    if dry_run and as_json:
        raise click.UsageError(
            "--dry-run prints no JSON, as its plan is for people to read: leave out --json, or "
            "leave out --dry-run for the results as JSON"
        )


def has_option(words: Sequence[str], option: str) -> bool:
    """Return whether the words of a command line have an option, also where they are wrong."""
    options = words[: words.index("--")] if "--" in words else words
    return option in options


def has_json(error: click.ClickException) -> bool:
    """Return whether the command that an error is of has ``--json``.

    Of a group of commands, such as an unknown one is looked for in, nobody knows.
    """
    context = getattr(error, "ctx", None)
    if context is None or isinstance(context.command, click.Group):
        return True
    return any(parameter.name == "as_json" for parameter in context.command.params)


def print_json_error(error: click.ClickException) -> None:
    """Print an error as the object that a command with ``--json`` prints in place of its own."""
    kind = "input" if error.exit_code == 2 else "failure"
    click.echo(as_json_text({"error": {"kind": kind, "message": error.format_message()}}))


def as_json_text(content: Any) -> str:
    """Return a value as JSON, in ASCII: a terminal obeys nothing of it."""
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value in the types that JSON has."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "to_dict"):
        value = value.to_dict("records")
    elif hasattr(value, "item"):
        value = _plain(value.item())
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


@contextlib.contextmanager
def _free_stdout() -> Iterator[None]:
    """Send to stderr what is printed in the block, also by other processes; then print the JSON."""
    out, meta = sys.stdout, click.get_current_context().meta
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            with contextlib.suppress(OSError):  # a stream of Python's own has no number
                number, errors = out.fileno(), sys.stderr.fileno()
                out.flush()
                stack.callback(_restore, os.dup(number), number)
                os.dup2(errors, number)
            yield
    finally:
        if (text := meta.pop(_TEXT, None)) is not None:
            click.echo(text)


def _restore(copy: int, number: int) -> None:
    os.dup2(copy, number)
    os.close(copy)
