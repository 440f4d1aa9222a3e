"""Lines and the log of a command that runs, and how much of them is shown.

Imports nothing heavy before it must.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import click

from ablations.drawing.text_table import fitted
from ablations.machine.progress import Step, above, show_step, status_line
from layerswap_method.errors import printable

Loudness = Literal["quiet", "verbose"]

_LOUDNESS = "layerswap.loudness"
"""Key in click's context of a command of `Loudness`."""

_NO_BARS = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

_DEBUG = {
    "TRANSFORMERS_VERBOSITY": "debug",
    "HF_HUB_VERBOSITY": "debug",
    "DATASETS_VERBOSITY": "debug",
    "LMEVAL_LOG_LEVEL": "DEBUG",
    "VLLM_LOGGING_LEVEL": "DEBUG",
}
"""Variables that libraries with loggers of their own read at their import."""

_HTTP = ("httpcore", "httpcore2", "httpx", "httpx2", "urllib3")
"""Loggers that write whole addresses and headers, in which a hub's signature may be."""


def print_line(text: str, *, err: bool = False) -> None:
    """Print `text` on stdout, or on stderr; above the status line, if there is one.

    On a terminal its lines are wrapped to fit.
    """
    stream = sys.stderr if err else sys.stdout
    text = fitted(printable(text), stream)
    if not above(text, stream):
        click.echo(text, err=err)


class _Handler(logging.Handler):
    """Writes above the status line, or above a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        text = fitted(printable(self.format(record)), sys.stderr)
        if not above(text):
            tqdm.write(text, file=sys.stderr)


@contextmanager
def watched(activity: str = "starting") -> Iterator[None]:
    """Show the steps of the block, and warnings; print lines in it by `print_line`.

    Args:
        activity: the step until another one is given.
    """
    handler = _Handler(logging.WARNING)
    logger = logging.getLogger("layerswap")
    with status_line():
        show_step(Step(activity))
        if loudness() != "verbose":  # the handler of all loggers shows them
            logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def show_log(level: int = logging.INFO) -> None:
    """Write the log messages of this package from `level` on, above any progress bar."""
    logger = logging.getLogger("ablations")
    is_verbose = loudness() == "verbose"
    logger.handlers = [] if is_verbose else [_Handler()]
    logger.propagate = is_verbose
    if is_verbose:
        level = logging.NOTSET
    elif loudness() == "quiet":
        level = max(level, logging.WARNING)
    logger.setLevel(level)


def loudness() -> Loudness | None:
    """Return what the user chose of ``--quiet`` and ``--verbose``, if any."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_LOUDNESS)


def _choose(context: click.Context, option: click.Parameter, is_chosen: bool) -> None:
    if not is_chosen or context.resilient_parsing or context.meta.get(_LOUDNESS) == option.name:
        return
    if _LOUDNESS in context.meta:
        raise click.UsageError("--quiet and --verbose exclude each other; give one of them")
    context.meta[_LOUDNESS] = option.name
    context.with_resource(_quiet() if option.name == "quiet" else _verbose())


OPTIONS = (
    click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=_choose,
        help="Show results, warnings and errors only.",
    ),
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=_choose,
        help="Also show the debug messages of this package and of the libraries.",
    ),
)
"""Options that `layerswap` and each of its commands have."""


def with_loudness(command: click.Command) -> click.Command:
    """Return a command that takes `OPTIONS`, with the commands below it."""
    if OPTIONS[0] not in command.params:
        command.params.extend(OPTIONS)
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        with_loudness(below)
    return command


@contextmanager
def _quiet() -> Iterator[None]:
    with _environment(_NO_BARS), status_line(False):
        yield


@contextmanager
def _verbose() -> Iterator[None]:
    root = logging.getLogger()
    handler = _Handler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    loggers = [root, *map(logging.getLogger, _HTTP)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG if logger is root else logging.WARNING)
    root.addHandler(handler)
    try:
        with _environment(_DEBUG):
            yield
    finally:
        root.removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that libraries and processes started by this one read, until the block ends."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
