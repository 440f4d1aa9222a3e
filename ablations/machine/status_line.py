"""What is being done, at the bottom of the terminal: drawn by rich on stderr, nowhere else.

What else is printed goes above it by `above`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from ablations.machine.progress import Step, listening

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_active: list[Progress] = []


@contextmanager
def status_line(shown: bool | None = None) -> Iterator[None]:
    """Show what is being done until the block ends; inside another such block the line is shared.

    Args:
        shown: whether to; None shows it on a terminal only.
    """
    is_wanted = sys.stderr.isatty() if shown is None else shown
    if not is_wanted or _active:
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
    _active.append(progress)
    try:
        with progress, listening(_Lines(progress).take):
            yield
    finally:
        _active.remove(progress)


def above(text: str, stream: TextIO | None = None) -> bool:
    """Print `text` above the line; return whether there is one, else nothing is printed.

    Args:
        text: one or several lines.
        stream: where to; None for stderr.
    """
    if not _active:
        return False
    if stream is None or stream is sys.stderr or stream.isatty():
        _active[-1].console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        stream.write(f"{text}\n")
        stream.flush()
    return True


class _Lines:
    """A line for the whole command, and one for the step that it is at."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._shown: dict[bool, tuple[TaskID, Step]] = {}

    def take(self, step: Step) -> None:
        """Show `step` from now on."""
        if not step.what and not step.is_whole:  # something else draws
            self._progress.stop()
            return
        self._progress.start()
        known = self._shown.get(step.is_whole)
        total = step.total or None
        if known is not None and _goes_on(known[1], step):
            line = known[0]
            self._progress.update(line, completed=step.done, total=total, amount=_amount(step))
        else:
            if known is not None:  # forgotten first: Ctrl-C may come at any line
                del self._shown[step.is_whole]
                self._progress.remove_task(known[0])
            what = " | ".join(filter(None, (step.what, step.where)))
            line = self._progress.add_task(what, total=total, amount=_amount(step))
            self._progress.update(line, completed=step.done)
        self._shown[step.is_whole] = line, step


def _goes_on(known: Step, step: Step) -> bool:
    same = (known.where, known.what) == (step.where, step.what)
    return same and step.done >= known.done


def _amount(step: Step) -> str:
    if not step.total:
        return ""
    if step.unit == "bytes":
        unit, size = ("GB", 1e9) if step.total >= 1e9 else ("MB", 1e6)
        return f"{step.done / size:.1f}/{step.total / size:.1f} {unit}"
    return f"{step.done:.0f}/{step.total:.0f} {step.unit}"
