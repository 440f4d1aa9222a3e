"""Lines and the log of a command that runs. Imports nothing heavy before it must."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from ablations.machine.progress import Step, above, show_step, status_line
from layerswap_method.errors import printable


def print_line(text: str, *, err: bool = False) -> None:
    """Print `text` on stdout, or on stderr; above the status line, if there is one."""
    text = printable(text)
    if not above(text, sys.stderr if err else sys.stdout):
        click.echo(text, err=err)


class _Handler(logging.Handler):
    """Writes above the status line, or above a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        text = printable(self.format(record))
        if not above(text):
            tqdm.write(text, file=sys.stderr)


@contextmanager
def watched(activity: str = "starting") -> Iterator[None]:
    """Show a status line on a terminal until the block ends; print lines in it by `print_line`.

    Args:
        activity: the text of the line until another step is given.
    """
    handler = _Handler(logging.WARNING)
    logger = logging.getLogger("layerswap")
    with status_line():
        show_step(Step(activity))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def show_log(level: int = logging.INFO) -> None:
    """Write the log messages of this package from `level` on, above any progress bar."""
    logger = logging.getLogger("ablations")
    logger.handlers = [_Handler()]
    logger.setLevel(level)
    logger.propagate = False
