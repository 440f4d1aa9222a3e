"""One line at the bottom of the terminal that says what is being done. Knows steps, not work.

It is drawn on stderr, twice a second and with a clock, so that a command is never silent; whatever
else is printed goes above it by `above`. Nothing is drawn where stderr is no terminal.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ablations.machine.progress import Step, listening

_EVERY_S = 0.5
_LEAST_S = 0.1
"""Between two pictures of one step."""

_CLEAR = "\r\x1b[K"

_active: list[StatusLine] = []


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
    line = StatusLine(sys.stderr, _LEAST_S)
    _active.append(line)
    try:
        with listening(line.take):
            yield
    finally:
        _active.remove(line)
        line.close()


def above(text: str, stream: TextIO | None = None) -> bool:
    """Print `text` above the line; return whether there is one, else nothing is printed.

    Args:
        text: one or several lines.
        stream: where to; None for stderr.
    """
    if not _active:
        return False
    _active[-1].above(text, stream or sys.stderr)
    return True


class StatusLine:
    """The line; drawn by a thread of its own, so that its clock goes on while work is done."""

    def __init__(self, stream: TextIO, least_s: float = 0.0):
        """Draw on `stream` from now on, a part that only advances at most every `least_s`."""
        self._stream = stream
        self._least_s = least_s
        self._drawn = 0.0
        self._lock = threading.RLock()
        self._whole: _Rate | None = None
        self._part: _Rate | None = None
        self._is_drawn = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw_again, daemon=True)
        self._thread.start()

    def take(self, step: Step) -> None:
        """Show `step` from now on."""
        with self._lock:
            known = self._whole if step.is_whole else self._part
            rate = _Rate.next(known, step)
            if step.is_whole:
                self._whole = rate
            else:
                self._part = rate
                if step.total and self._whole is not None:
                    self._whole.count_from_now()
            is_due = time.monotonic() - self._drawn >= self._least_s
            if rate is not known or step.is_whole or is_due:
                self._draw()

    def above(self, text: str, stream: TextIO) -> None:
        """Print `text` to `stream` above the line."""
        with self._lock:
            if self._is_drawn:
                self._stream.write(_CLEAR)
                self._stream.flush()
            stream.write(f"{text}\n")
            stream.flush()
            self._draw()

    def close(self) -> None:
        """Remove the line."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _draw_again(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._ended.is_set():
            return
        self._drawn = now = time.monotonic()
        columns = shutil.get_terminal_size((100, 24)).columns
        rates = [each for each in (self._whole, self._part) if each is not None]
        parts = [*(each.as_text(now) for each in rates), *(each.step.where for each in rates)]
        is_quiet = self._part is not None and not self._part.step.what
        text = "" if is_quiet else " | ".join(filter(None, parts))
        if text or self._is_drawn:  # else another bar may stand there
            self._stream.write(f"{_CLEAR}{text[: columns - 1]}")
            self._stream.flush()
        self._is_drawn = bool(text)


class _Rate:
    """A step and how fast it advances."""

    def __init__(self, step: Step):
        self.step = step
        self._began = time.monotonic()
        self._counted_from: float | None = None
        self._first = step

    def count_from_now(self) -> None:
        """Measure the speed from now on, if nothing was done or measured before.

        What is done before the first item, such as the start of an engine, is done once and says
        nothing about the rest.
        """
        if self._counted_from is None and not self._gained():
            self._counted_from = time.monotonic()

    def _gained(self) -> float:
        first = self._first
        return self.step.done - self.step.skipped - (first.done - first.skipped)

    @classmethod
    def next(cls, known: _Rate | None, step: Step) -> _Rate:
        """Return the rate of `step`: that of `known` goes on where it is about the same."""
        if known is None or (known.step.where, known.step.what) != (step.where, step.what):
            return cls(step)
        if step.done < known.step.done:  # it began again
            return cls(step)
        known.step = step
        return known

    def as_text(self, now: float) -> str:
        """Return what is done, how far it is, how fast, and the time that is left."""
        step, elapsed = self.step, now - self._began
        text = step.what
        if not step.total:
            return f"{text}  {_clock(elapsed)}".strip()
        if step.unit == "bytes":
            unit, size = ("GB", 1e9) if step.total >= 1e9 else ("MB", 1e6)
            text += f" {step.done / size:.1f}/{step.total / size:.1f} {unit}"
        else:
            text += f" {step.done:.0f}/{step.total:.0f} {step.unit}"
        tokens = step.tokens - self._first.tokens
        if tokens and elapsed:
            text += f", {tokens / elapsed:,.0f} tokens/s"
        if (gained := self._gained()) > 0 and step.done < step.total:
            took = elapsed if self._counted_from is None else now - self._counted_from
            return f"{text}, {_clock(took * (step.total - step.done) / gained)} left".strip()
        return f"{text}  {_clock(elapsed)}".strip()


def _clock(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
