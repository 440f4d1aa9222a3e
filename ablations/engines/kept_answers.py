"""Answers that a model has given so far, on disk as they arrive, so that a killed run goes on.

One file belongs to one task asked of one model under one protocol; whoever names it sees to that.
Knows lines; neither lm-eval nor an engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from ablations.machine.json_lines import read_lines

logger = logging.getLogger(__name__)


def key_of(*asked: Any) -> str:
    """Return a hash of what an engine is asked; what JSON does not know goes in as its `repr`."""
    text = json.dumps(asked, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class KeptAnswers:
    """An append-only file of answers, and those of them that were not asked for yet.

    A line is written with one call, so a kill loses or tears the last one at most; a torn line is
    dropped. Where the file cannot be written the answers are not kept, and the run goes on.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there.

        Args:
            path: the file; it need not be there.
        """
        self._path = path
        self._known: defaultdict[str, deque[Any]] = defaultdict(deque)
        self._file: int | None = None
        self._failed = False
        self.taken = 0
        """Answers that were there already and have been asked for."""
        if path.is_file():
            self._read()

    def take(self, key: str, answers: int = 1) -> Any | None:
        """Return what was kept for `key`, None where nothing is left of it.

        What was kept twice is given once for each time, in its order.

        Args:
            key: of `key_of`.
            answers: how many answers that is, for `taken`.
        """
        if not self._known.get(key):
            return None
        self.taken += answers
        return self._known[key].popleft()

    def keep(self, key: str, value: Any) -> None:
        """Append what came of `key`, as JSON."""
        if self._failed:
            return
        line = json.dumps([key, value], ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = os.open(self._path, flags, 0o666)
            data = line.encode()
            while data:  # a regular file takes all at once, unless the disk is full
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._failed = True
            logger.warning("answers are not kept as they arrive: %s: %s", self._path, error)

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> None:
        with self._path.open("rb+") as file:  # what follows the last whole line was torn off
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        for number, line in read_lines(self._path):
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                logger.warning("%s:%d is damaged; that answer is asked again", self._path, number)
                continue
            self._known[str(key)].append(value)
