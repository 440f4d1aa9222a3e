"""How functions that take long say how many bytes are done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Advance = Callable[[int], object]
"""Called with the bytes that are done since the last call, from any thread."""

Bar = Callable[[str, int], AbstractContextManager[Advance]]
"""(what is done, bytes of it) -> a context that shows the progress it is called with."""


def no_bar(what: str, size: int) -> AbstractContextManager[Advance]:
    """Show no progress."""
    return nullcontext(lambda count: None)
