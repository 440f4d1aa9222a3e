"""The step that a command is at, drawn by rich at the bottom of the terminal (stderr) only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """A piece of work, and how far it is."""

    what: str
    """The work in words; ``""`` where something else shows its own progress."""

    done: float = 0.0

    total: float = 0.0
    """0 if unknown."""

    unit: str = "items"
    """Unit of both numbers; ``bytes`` are shown as MB or GB."""

    is_whole: bool = False
    """Whether this is about the whole command, of which every other step is a part."""


_listeners: list[Callable[[Step], None]] = []
_lines: list[Progress] = []


def show_step(step: Step) -> None:
    """Show a step, if a listener is set."""
    if _listeners:
        _listeners[-1](step)


def track(activity: str, items: Sequence[T], unit: str = "tensors") -> Iterator[T]:
    """Yield `items`, showing how many of them were taken."""
    for done, item in enumerate(items):
        show_step(Step(activity, done, len(items), unit=unit))
        yield item


@contextmanager
def listening(listener: Callable[[Step], None]) -> Iterator[None]:
    """Hand every step to `listener` until the block ends."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def byte_progress(activity: str, size: int) -> Iterator[Callable[[int], object]]:
    """Show how many of `size` bytes are done; yield a function to call with the new ones."""
    lock, done = threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal done
        with lock:  # several threads write
            done += count
            show_step(Step(activity, done, size, unit="bytes"))

    advance(0)
    yield advance


@contextmanager
def status_line(shown: bool | None = None) -> Iterator[None]:
    """Show every step until the block ends; inside another such block the line is shared.

    Args:
        shown: whether to; None shows it on a terminal only.
    """
    if _lines or not (sys.stderr.isatty() if shown is None else shown):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description} {task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, force_terminal=shown),
        redirect_stdout=False,  # it may be a file
        transient=True,
    )
    rows: dict[bool, tuple[TaskID, str]] = {}  # one for the whole command, one for its step

    def draw(step: Step) -> None:
        if not step.what and not step.is_whole:
            progress.stop()
            return
        progress.start()
        row, shown_text = rows.pop(step.is_whole, (None, ""))
        if row is not None and shown_text != step.what:
            progress.remove_task(row)
            row = None
        if row is None:
            row = progress.add_task(step.what, total=None, amount="")
        progress.update(row, completed=step.done, total=step.total or None, amount=_amount(step))
        rows[step.is_whole] = row, step.what

    _lines.append(progress)
    try:
        with progress, listening(draw):
            yield
    finally:
        _lines.remove(progress)


def above(text: str, stream: TextIO | None = None) -> bool:
    """Print `text` above the line; return whether there is one, else nothing is printed.

    Args:
        text: one or several lines.
        stream: where to; None for stderr.
    """
    if not _lines:
        return False
    if stream is None or stream is sys.stderr or stream.isatty():
        _lines[-1].console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        stream.write(f"{text}\n")
        stream.flush()
    return True


def _amount(step: Step) -> str:
    if not step.total:
        return ""
    if step.unit == "bytes":
        unit, size = ("GB", 1e9) if step.total >= 1e9 else ("MB", 1e6)
        return f"{step.done / size:.1f}/{step.total / size:.1f} {unit}"
    return f"{step.done:.0f}/{step.total:.0f} {step.unit}"
