"""The current step of a command, sent to listeners such as the status line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """What is being done, and how far that is."""

    what: str
    """In words; ``""`` where something else shows its own progress."""

    done: float = 0.0
    """Of `total`, in `unit`."""

    total: float = 0.0
    """0 where nobody knows."""

    unit: str = "items"
    """What is counted; ``bytes`` are shown as MB or GB."""

    where: str = ""
    """What it belongs to, such as a cell."""

    is_whole: bool = False
    """Whether this is about the whole command, of which every other step is a part."""


Listener = Callable[[Step], None]

_listeners: list[Listener] = []


def tell(step: Step) -> None:
    """Tell the listener what is being done; does nothing where nobody listens."""
    if _listeners:
        _listeners[-1](step)


def counted(what: str, things: Sequence[T], unit: str = "tensors") -> Iterator[T]:
    """Yield `things`, telling how many of them were taken."""
    for done, thing in enumerate(things):
        tell(Step(what, done, len(things), unit=unit))
        yield thing


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hand every step to `listener` until the block ends."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
