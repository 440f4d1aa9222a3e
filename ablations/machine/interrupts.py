"""Ctrl-C while other packages are imported. Knows signals; not what is imported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was pressed in it and got lost.

    An import may lose it: Python calls weak references back with every import and drops what is
    raised in such a call, and some packages catch everything while they import others. Where
    nothing is lost, Ctrl-C ends the block at once, as ever. A process that handles the signal in
    its own way, and a thread that is not the main one, are left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if pressed:  # a package has made another error of it
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
