"""Where the log of this package goes while a command runs. Imports nothing heavy before it must."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from ablations.machine.status_line import above


def show_log(
    level: int = logging.INFO, *, stream: TextIO | None = None, with_seconds: bool = False
) -> None:
    """Write what this package says of its progress, above any bar, and nobody else's chatter.

    Args:
        level: what is said; pass ``logging.WARNING`` where a status line tells the rest.
        stream: where to; None for stderr.
        with_seconds: whether each message begins with the seconds since now.
    """
    from tqdm import tqdm

    started = time.monotonic()

    class Handler(logging.Handler):
        """Writes above the status line, or above a bar."""

        def emit(self, record: logging.LogRecord) -> None:
            before = f"{time.monotonic() - started:6.1f} s  " if with_seconds else ""
            text, file = before + self.format(record), stream or sys.stderr
            if not above(text, file):
                tqdm.write(text, file=file)

    logger = logging.getLogger("ablations")
    logger.handlers = [Handler()]
    logger.setLevel(level)
    logger.propagate = False
