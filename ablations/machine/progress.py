"""The step that a command is at: bars on a terminal or in a notebook, now and then a line in a log.

All say how much is done, the rate and the time that is left. The rate is what
was done since the step began, by the time until the last of it was: rich's own counts from its
first sample, which for answers that come in batches is the end of the first batch. The time that is
left goes down between two ends, and up where the next end is later than any before.
"""

from __future__ import annotations

import datetime
import html
import importlib
import itertools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar

from layerswap_method.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_LINE_S, NEXT_LINE_S = 5.0, 30.0
"""Time before the first line in a log file, and between two of them."""

CELL_S = 1.0
"""Time between two looks of a notebook's cell."""


FIRST_SHARE, FIRST_S = 0.01, 30.0
"""Share of the bytes, or else seconds of work, from which a time that is left is shown."""


@dataclass(frozen=True)
class Step:
    """A piece of work, and how far it is."""

    activity: str
    """The work in words; ``""`` where something else shows its own progress."""

    done: float = 0.0

    total: float = 0.0
    """0 if unknown."""

    unit: str = "items"
    """Unit of both numbers; ``bytes`` are shown as MB or GB."""

    scope: Literal["command", "unit"] | None = None
    """``command``: this is about the whole command, and counts the units of it that have ended.
    ``unit``: it is about the unit under way, such as a task of a run, which ends when the command
    counts one more. None: it is no measure of the command."""


_listeners: list[Callable[[Step], None]] = []
_displays: list[_Display | None] = []
"""The displays of the steps; None where nothing is to be shown."""

_has_finished_work = False


def show_step(step: Step) -> None:
    """Show a step, if a listener is set."""
    if step.activity and not step.done and step.scope != "command":
        logger.debug("%s", step.activity)
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


def note_finished_work() -> None:
    """Note that there is saved work which the same command would not do again."""
    global _has_finished_work
    _has_finished_work = True


def has_finished_work() -> bool:
    """Return whether the command would find saved work if it was started again."""
    return _has_finished_work


@contextmanager
def status_line(shown: bool | None = None) -> Iterator[None]:
    """Show every step until the block ends; inside another such block its display is shared.

    Args:
        shown: True draws bars, False shows nothing; None draws bars on a terminal and in the cell
            of a notebook, and elsewhere writes a line now and then. The variable that turns off
            the bars of libraries makes it False.
    """
    if _displays:
        yield
        return
    if shown is False or (shown is None and os.environ.get("TQDM_DISABLE")):
        _displays.append(None)
        try:
            yield
        finally:
            _displays.remove(None)
        return
    # A notebook runs `!layerswap` on a terminal, of which its cell shows every frame.
    is_terminal = sys.stderr.isatty() and "JPY_PARENT_PID" not in os.environ
    display = _Display(is_drawn=shown or is_terminal, is_forced=shown)
    _displays.append(display)
    try:
        with display.running(), listening(display.show):
            yield
    finally:
        _displays.remove(display)


def above(text: str, stream: TextIO | None = None) -> bool:
    """Print `text` above the bars; return whether there are any, else nothing is printed.

    Args:
        text: one or several lines.
        stream: where to; None for stderr.
    """
    display = _displays[-1] if _displays else None
    if display is None or not display.is_drawn:
        return False
    if stream is None or stream is sys.stderr or stream.isatty():
        display.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        stream.write(f"{text}\n")
        stream.flush()
    return True


class _Display:
    """Two rows, one for the whole command and one for its step: drawn, or written as lines."""

    def __init__(self, *, is_drawn: bool, is_forced: bool | None) -> None:
        self.is_drawn = is_drawn
        self.progress = _rows(is_drawn, is_forced)
        self._whole: TaskID | None = None
        self._step: TaskID | None = None
        self._activity = ""
        """Text of the step."""
        self._ended, self._share = 0.0, 0.0
        """Units of the whole that have ended, and what is done of the one that is under way: their
        sum is where the row of the whole is."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the rows until the block ends."""
        if self.is_drawn:
            with self.progress:
                yield
            return
        ended = threading.Event()
        writer = threading.Thread(target=self._write_lines, args=(ended,), daemon=True)
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()

    def show(self, step: Step) -> None:
        """Show a step in its row."""
        if step.scope == "command":
            self._show_whole(step)
            return
        if self._step is not None and self._is_another(self._step, step):
            self.progress.remove_task(self._step)
            self._step = None
        if not step.activity:
            self.progress.stop()
            return
        self.progress.start()
        is_first = self._step is None
        if self._step is None:
            self._step, self._activity = self._add(step), step.activity
        else:
            self._update(self._step, step, step.done)
        if step.scope == "unit" and self._whole is not None and step.total:
            if is_first:
                self._begin_with_unit(self._whole)
            self._show_share(self._whole, step.done / step.total, is_before=is_first)

    def _is_another(self, row: TaskID, step: Step) -> bool:
        """Return whether a step is not that of a row, or is that once more from its beginning."""
        return self._activity != step.activity or step.done < self._task(row).completed

    def _begin_with_unit(self, row: TaskID) -> None:
        """Count the time of the whole from its first unit: an engine's start is none."""
        task = self._task(row)
        if task.completed == task.fields["before"]:
            self.progress.reset(row, total=task.total, completed=int(task.completed))

    def _show_share(self, row: TaskID, share: float, *, is_before: bool) -> None:
        """Add what is done of a unit to the whole; `is_before` if another call did that.

        The steps of a unit follow one another, as those of a task that is asked in two ways: it is
        as far as the one that came furthest.
        """
        if share <= self._share:
            return
        before = share - self._share if is_before else 0.0
        self._share = share
        self._move(row, self._ended + share, before)

    def _show_whole(self, step: Step) -> None:
        self.progress.start()
        if self._whole is not None and step.done < self._ended:  # another run begins
            self.progress.remove_task(self._whole)
            self._whole, self._share = None, 0.0
        if self._whole is None:
            self._whole = self._add(step)
        elif step.done != self._ended:
            self._share = 0.0
        self._ended = step.done
        self._update(self._whole, step, step.done + self._share)

    def _add(self, step: Step) -> TaskID:
        # rich's type is int, and it counts with what it is given.
        completed: int = step.done  # type: ignore[assignment]
        return self.progress.add_task(
            _title(step),
            total=step.total or None,
            completed=completed,
            unit=step.unit,
            scope=step.scope,
            before=step.done,
            worked_s=0.0,
            longest_wait_s=0.0,
        )

    def _update(self, row: TaskID, step: Step, done: float) -> None:
        self.progress.update(row, total=step.total or None, description=_title(step))
        self._move(row, done)

    def _move(self, row: TaskID, done: float, before: float = 0.0) -> None:
        """Set how far a row is; of what is new, `before` took no time here."""
        task = self._task(row)
        if done != task.completed:
            elapsed_s = task.elapsed or 0.0
            wait_s = elapsed_s - task.fields["worked_s"]
            longest_wait_s = max(task.fields["longest_wait_s"], wait_s)
            self.progress.update(row, worked_s=elapsed_s, longest_wait_s=longest_wait_s)
        self.progress.update(row, completed=done, before=task.fields["before"] + before)

    def _task(self, row: TaskID) -> Task:
        return next(task for task in self.progress.tasks if task.id == row)

    def _write_lines(self, ended: threading.Event) -> None:
        if (show := _in_cell()) is not None:
            while not ended.wait(CELL_S):
                show(_cell_page(self.progress.tasks))
            show("")
            return
        for wait_s in itertools.chain([FIRST_LINE_S], itertools.repeat(NEXT_LINE_S)):
            if ended.wait(wait_s):
                return
            if tasks := self.progress.tasks:
                sys.stderr.write("; ".join(map(_row_text, tasks)) + "\n")
                sys.stderr.flush()


def _in_cell() -> Callable[[str], None] | None:
    """Return what shows HTML in the cell of this notebook, in one place; None outside of one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is None:
        return None
    display = importlib.import_module("IPython.display").display
    handle = display({"text/html": ""}, raw=True, display_id=True)
    return lambda page: handle.update({"text/html": page}, raw=True)


def _cell_page(tasks: Sequence[Task]) -> str:
    rows = []
    for task in tasks:
        share = f' value="{task.completed / task.total:.3f}"' if task.total else ""
        rows.append(f"<div><progress{share}></progress> {html.escape(_row_text(task))}</div>")
    return "\n".join(rows)


def _title(step: Step) -> str:
    return printable(
        f"{step.activity}:" if step.scope == "command" and step.activity else step.activity
    )


def _rows(is_drawn: bool, is_forced: bool | None) -> Progress:
    """Return rich's rows; where they are not drawn, only their numbers are used."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class RowText(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_row_text(task))

    return Progress(
        BarColumn(bar_width=16),
        RowText(table_column=Column(no_wrap=True)),
        console=Console(stderr=True, force_terminal=is_forced),
        redirect_stdout=False,  # it may be a file
        transient=True,
        disable=not is_drawn,
    )


def _row_text(task: Task) -> str:
    """Return a row in words: ``training math 23/375 steps, 2.1 steps/s, 0:02:47 left``."""
    unit = task.fields["unit"]
    wait_s = (task.elapsed or 0.0) - task.fields["worked_s"]
    due_s = min(wait_s, task.fields["longest_wait_s"])
    speed = _speed(task, wait_s - due_s)
    parts = [f"{task.description} {_amount(task.completed, task.total, unit)}".strip()]
    if task.fields["scope"] == "command" and task.total == 1:
        return parts[0]  # its only unit has a row, and would have another rate and time left
    if speed and task.total:
        parts.append(_rate(speed, unit))
    if speed and task.remaining and _says_something(task):
        left_s = max(0.0, task.remaining / speed - due_s)
        parts.append(f"{_duration(math.ceil(left_s))} left")
    elif not task.finished and (task.elapsed or 0) >= 1:
        parts.append(f"{_duration(task.elapsed or 0)} so far")
    return ", ".join(parts)


def _says_something(task: Task) -> bool:
    """Return whether the rate of a row says how long the rest takes: files differ much in size."""
    new = task.completed - task.fields["before"]
    is_little = new < FIRST_SHARE * (task.total or 0)
    return task.fields["unit"] != "bytes" or not is_little or task.fields["worked_s"] >= FIRST_S


def _speed(task: Task, overdue_s: float) -> float:
    """Return what was done in a second since a row began; 0 if nothing was.

    `overdue_s` is by how much the next end is later than any before.
    """
    worked_s = task.fields["worked_s"]
    return (task.completed - task.fields["before"]) / (worked_s + overdue_s) if worked_s else 0.0


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=int(seconds)))


def _amount(done: float, total: float | None, unit: str) -> str:
    if not total:
        return ""
    if unit == "bytes":
        name, size = _byte_unit(total)
        return f"{done / size:.1f}/{total / size:.1f} {name}"
    return f"{int(done)}/{int(total)} {unit}"


def _rate(speed: float, unit: str) -> str:
    """Return a rate in the largest unit of bytes, or of time, that leaves it readable."""
    if unit == "bytes":
        name, size = _byte_unit(speed)
        return f"{_digits(speed / size)} {name}/s"
    for seconds, name in ((1, "s"), (60, "min")):
        if speed * seconds >= 1:
            return f"{_digits(speed * seconds)} {unit}/{name}"
    return f"{_digits(speed * 3600)} {unit}/h"


def _digits(number: float) -> str:
    """Return a number with three digits, or all before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _byte_unit(size: float) -> tuple[str, float]:
    return ("GB", 1e9) if size >= 1e9 else ("MB", 1e6)
