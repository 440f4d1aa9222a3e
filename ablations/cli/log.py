"""Where the log of this package goes while a command runs. Imports nothing heavy before it must."""

from __future__ import annotations

import logging
import sys


def show_log(level: int = logging.INFO) -> None:
    """Write what this package says to stderr, above any progress bar.

    Args:
        level: what is said; pass ``logging.WARNING`` where a bar tells the rest.
    """
    from tqdm import tqdm

    class Handler(logging.Handler):
        """Writes above the bar."""

        def emit(self, record: logging.LogRecord) -> None:
            tqdm.write(self.format(record), file=sys.stderr)

    logger = logging.getLogger("ablations")
    logger.handlers = [Handler()]
    logger.setLevel(level)
    logger.propagate = False
