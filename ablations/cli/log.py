"""Where lines and the log go while a command runs. Imports nothing heavy before it must."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from ablations.machine.names import printable
from ablations.machine.progress import Step, above, status_line, tell


def say(text: str, *, err: bool = False) -> None:
    """Print `text` on stdout, or on stderr; above the status line, if there is one."""
    text = printable(text)
    if not above(text, sys.stderr if err else sys.stdout):
        click.echo(text, err=err)


def say_answer(text: str) -> None:
    """Print the answer of a study on stdout; its warnings are red on a terminal."""
    is_warning = False
    for line in printable(text).splitlines():
        if not line.startswith(" "):  # else it goes on with the line before
            is_warning = line.startswith("Warning: ")
        click.secho(line, fg="red" if is_warning else None)


class _Handler(logging.Handler):
    """Writes above the status line, or above a bar."""

    def __init__(self, stream: TextIO | None = None, *, with_seconds: bool = False):
        super().__init__()
        self._stream, self._started = stream, time.monotonic() if with_seconds else None

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        began, file = self._started, self._stream or sys.stderr
        before = "" if began is None else f"{time.monotonic() - began:6.1f} s  "
        text = before + printable(self.format(record))
        if not above(text, file):
            tqdm.write(text, file=file)


@contextmanager
def watched(what: str = "starting") -> Iterator[None]:
    """Show a status line on a terminal until the block ends; print lines in it by `say`.

    Args:
        what: what is being done until another step is given.
    """
    handler, logger = _Handler(), logging.getLogger("layerswap")
    handler.setLevel(logging.WARNING)
    with status_line():
        tell(Step(what))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def show_log(
    level: int = logging.INFO, *, stream: TextIO | None = None, with_seconds: bool = False
) -> None:
    """Write the log messages of this package, and no others, above any progress bar.

    Args:
        level: lowest level that is written; ``logging.WARNING`` where a status line shows the rest.
        stream: where to; None for stderr.
        with_seconds: whether each message begins with the seconds since now.
    """
    logger = logging.getLogger("ablations")
    logger.handlers = [_Handler(stream, with_seconds=with_seconds)]
    logger.setLevel(level)
    logger.propagate = False
