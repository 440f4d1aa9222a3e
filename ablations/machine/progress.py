"""What is being done at this moment, told to whoever listens. Knows no terminal and no work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


def is_heard() -> bool:
    """Return whether anybody listens."""
    return bool(_listeners)


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


def together(steps: Mapping[str, Step]) -> Step:
    """Return one step for what is done at once: its items are the sum.

    Args:
        steps: what each belongs to -> step; at least one.
    """
    if len(steps) == 1:
        ((where, step),) = steps.items()
        return replace(step, where=where)
    known = [step for step in steps.values() if step.total and step.unit == "items"]
    return Step(
        f"{len(steps)} tasks at once",
        done=sum(step.done for step in known),
        total=sum(step.total for step in known),
    )


def now_and_then(listener: Listener, every_s: float = 0.25) -> Listener:
    """Return a listener that passes on new steps at once, and their advance every `every_s`."""
    last: tuple[tuple[str, str], float] = (("", ""), 0.0)

    def pass_on(step: Step) -> None:
        nonlocal last
        now, key = time.monotonic(), (step.where, step.what)
        if key != last[0] or now - last[1] >= every_s or step.done >= step.total > 0:
            last = (key, now)
            listener(step)

    return pass_on
