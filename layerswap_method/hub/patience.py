"""How long a server is waited for: one that asks for more, or hardly sends, is given up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from layerswap_method.errors import LayerSwapError

LONGEST_WAIT_S = 300
"""Longest time that a server may ask to wait (Retry-After)."""

LEAST, PATIENCE_S = 1 << 16, 120.0
"""An answer of which fewer bytes come in such a time is given up."""

GOES_ON = "the same command goes on with what is there"


class Pace:
    """The pace of an answer, or of several on one range of a file, which messages call `name`."""

    def __init__(self, name: str) -> None:
        self._name, self._since, self._count = name, time.monotonic(), 0

    def waited(self, seconds: float) -> None:
        """Leave out a time that the server asked to wait."""
        self._since += seconds

    def check(self, count: int) -> None:
        """Note bytes that came; raise `LayerSwapError` for fewer than `LEAST` in `PATIENCE_S`."""
        self._count += count
        if self._count >= LEAST:
            self._since, self._count = time.monotonic(), 0
        elif time.monotonic() - self._since > PATIENCE_S:
            raise LayerSwapError(
                f"{self._name}: the download brought {self._count} bytes in {PATIENCE_S:g} s and "
                f"was given up; {GOES_ON}"
            )


def check_wait(response: Any) -> float:
    """Return how many seconds a server asks to wait before the next try, 0 where it does not.

    Raises `LayerSwapError` for longer than `LONGEST_WAIT_S`.
    """
    text = response.headers.get("Retry-After", "").strip()
    if response.status_code < 400 or not text.isdecimal():
        return 0.0
    if len(text) > 6 or int(text) > LONGEST_WAIT_S:
        raise LayerSwapError(
            f"{response.url.host}: the server asks to wait for {text[:12]} s (HTTP "
            f"{response.status_code}), longer than the {LONGEST_WAIT_S} s that are waited for; "
            f"{GOES_ON}"
        )
    return float(text)


def watch(response: Any) -> None:
    """Watch an answer to huggingface_hub as an event hook: its wait, and its pace while it is read.

    Raises `LayerSwapError` as `check_wait`, and `Pace.check` to the reader.
    """
    import httpx2

    class Watched(httpx2.SyncByteStream):
        """A stream that is given up where it hardly goes on."""

        def __init__(self, stream: Any) -> None:
            self._stream, self._pace = stream, Pace(response.url.host)

        def __iter__(self) -> Iterator[bytes]:
            for content in self._stream:
                self._pace.check(len(content))
                yield content

        def close(self) -> None:
            self._stream.close()

    check_wait(response)
    response.stream = Watched(response.stream)
