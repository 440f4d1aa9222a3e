"""How functions that take long say what they do: lines for the log, and the bytes that are done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Log = Callable[[str], object]
"""Called with each line for the log, when it is so."""

Advance = Callable[[int], object]
"""Called with the bytes that are done since the last call, from any thread."""

Bar = Callable[[str, int], AbstractContextManager[Advance]]
"""(activity, bytes of it) -> a context that shows the progress it is called with."""


def no_bar(activity: str, size: int) -> AbstractContextManager[Advance]:
    """Show no progress."""
    return nullcontext(lambda count: None)
