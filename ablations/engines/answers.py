"""Answers of models on disk: a prompt that a model has answered is not sent to it again.

    ANSWERS/WEIGHTS/TASK.jsonl      one line per answer, appended as it arrives
    ANSWERS/WEIGHTS/TASK.unchecked  the same of a live engine, until it has been checked

An answer is found again by the key of its question (`ablations.engines.questions`). So a larger
limit sends the new items only, and another metric, filter or confidence level sends nothing.

Each line has a checksum of its content and of WEIGHTS, the name of its folder. A line that was
damaged, or whose file was moved to another model's folder, is not taken and its prompt is sent
again. Lines from before checksums have none and are taken where they are.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ablations.machine.fingerprint import checksum_of
from ablations.machine.locks import try_claim
from ablations.machine.progress import note_finished_work
from ablations.machine.untrusted import open_regular
from ablations.machine.whole_files import DiskFull, is_full
from ablations.scoring.observed import Outcome
from layerswap_method.errors import LayerSwapError, counted

if TYPE_CHECKING:
    from ablations.machine.locks import Claim

logger = logging.getLogger(__name__)

_LOCK = ".lock"

_UNCHECKED = ".unchecked"

_BEGIN = b'{"key":"'

_DAMAGES = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""Errors of `_parsed`."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A model's answer to one request of lm-eval."""

    response: str | tuple[float, bool]
    """The text; or log-likelihood in nats and whether it is greedy."""

    outcome: Outcome


def read_answers(path: Path, keys: Collection[str]) -> dict[str, Answer]:
    """Return key -> stored answer for those of `keys` that a file has; of several the last.

    Raises:
        FileNotFoundError: where there is none.
        OSError: where it cannot be read, or is no file.
    """
    answers = dict[str, Answer]()
    wanted = {key.encode() for key in keys}
    with open_regular(path) as file:
        for line in file:
            # Each line begins with its key, and only those of `keys` are worth the time.
            if line[len(_BEGIN) :].partition(b'"')[0] in wanted:
                try:
                    key, answer = _parsed(line, path.parent.name)
                except _DAMAGES:
                    continue
                answers[key] = answer
    return answers


class AnswerFile:
    """The answers of one model to one task; a context manager that holds the writer's lock.

    A line is written with one call, so a kill loses or tears the last one at most; a torn line is
    dropped. Where the file cannot be read, written or locked, or another run writes answers of this
    model, the evaluation goes on and its answers are not stored. A full disk ends it: `DiskFull`.

    Its states: *closed* before and after the block, and without the lock (`keep` then stores
    nothing); *open* in it. With `is_checked` each new answer is in the file at once. Without, new
    answers *wait for a check* in ``TASK.unchecked``, until they are *confirmed* (`confirm` appends
    them to the file) or *withdrawn* (`withdraw` removes them).
    """

    def __init__(self, path: Path, settings_hash: str = "", *, is_checked: bool = True) -> None:
        """Read nothing yet.

        Args:
            path: of the file.
            settings_hash: of what its questions have in common (`hash_settings`).
            is_checked: whether new answers are stored at once; else by `confirm`, in the same
                block. A run that ends before that (Ctrl-C, SIGKILL, a full disk) leaves them in a
                file of their own, which the next one removes.
        """
        self.path = path
        self.settings_hash = settings_hash
        self._target = path if is_checked else path.with_suffix(_UNCHECKED)
        self._answers: dict[str, Answer] = {}
        self._new = set[str]()
        self._lock: Claim | None = None
        self._file: int | None = None
        self.reused = 0
        """Number of stored answers that were used in place of the engine."""

    def __enter__(self) -> Self:
        """Take the lock if it is free, and read what is there."""
        self.reused = 0
        try:
            self._lock = try_claim(self.path.parent, _LOCK, option="an --answers")
            if self._lock is None:
                logger.info("%s: another run stores answers, this one none", self.path.parent)
        except (OSError, LayerSwapError) as error:
            self._give_up(error)
        try:
            if self._lock is not None:
                self._remove_unchecked()
            if self.path.is_file():
                self._answers |= dict(self._read())
        except OSError as error:
            self._give_up(error)
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the file and release the lock."""
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def confirm(self) -> None:
        """Store the answers that waited for a check of their engine.

        Raises:
            DiskFull: where there is no room for them.
        """
        try:
            if self._lock is not None and self._target.is_file():
                with self.path.open("ab") as file:
                    file.write(self._target.read_bytes())
                self._target.unlink()
                note_finished_work()
        except OSError as error:
            self._give_up(error)

    def withdraw(self) -> None:
        """Remove the answers that waited for a check, which has failed."""
        assert self._target != self.path
        if self._lock is not None:
            self._target.unlink(missing_ok=True)

    def take(self, key: str) -> Answer | None:
        """Return the answer to a question, None where there is none."""
        return self._answers.get(key)

    def count(self, key: str) -> None:
        """Count an answer that was taken, if an earlier run stored it."""
        self.reused += key not in self._new

    def keep(self, key: str, answer: Answer) -> None:
        """Append an answer, unless it is there; one that had other room is replaced."""
        earlier, is_cut = self._answers.get(key), answer.outcome.is_truncated
        if earlier and dataclasses.replace(earlier.outcome, is_truncated=is_cut) == answer.outcome:
            return
        self._answers[key] = answer
        self._new.add(key)
        if self._lock is None:
            return
        content = {"key": key, "response": answer.response, **dataclasses.asdict(answer.outcome)}
        content["checksum"] = checksum_of(content, self.path.parent.name)
        line = json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = os.open(self._target, flags, 0o666)
            data = line.encode()
            while data:  # a regular file takes all at once, unless the disk is full
                data = data[os.write(self._file, data) :]
            if self._target == self.path:  # what waits for a check is not saved yet
                note_finished_work()
        except OSError as error:
            self._give_up(error)

    def _remove_unchecked(self) -> None:
        """Remove answers of an engine that was not checked again before its run ended."""
        left = self.path.with_suffix(_UNCHECKED)
        if left.is_file():
            lines = left.read_bytes().count(b"\n")
            left.unlink()
            logger.warning(
                "%s: %s of a run that ended before its engine was checked are asked again",
                self.path,
                counted(lines, "answer"),
            )

    def _give_up(self, error: OSError | LayerSwapError) -> None:
        self._release()
        if isinstance(error, OSError) and is_full(error):
            raise DiskFull(
                f"{self.path}: cannot be written: {error.strerror}. The answers before are stored: "
                "make room, or choose another --answers, and run the same command again"
            ) from error
        logger.warning("answers are not stored: %s: %s", self.path, error)

    def _read(self) -> Iterator[tuple[str, Answer]]:
        """Yield key and answer of each line that can be read; drop a torn last line."""
        whole, damaged = 0, list[int]()
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") and self._lock is not None:
                    logger.warning("%s: its last line was torn and is dropped", self.path)
                    os.truncate(self.path, whole)
                    break
                whole += len(line)
                try:
                    yield _parsed(line, self.path.parent.name)
                except _DAMAGES:
                    damaged.append(number)
        if damaged:
            logger.warning(
                "%s: %s (the first is line %d) are damaged or were moved here from another model; "
                "their prompts are sent again",
                self.path,
                counted(len(damaged), "answer"),
                damaged[0],
            )


def _parsed(line: bytes, weights: str) -> tuple[str, Answer]:
    """Return key and answer of a line of the model `weights`; raises one of `_DAMAGES`."""
    content = json.loads(line)
    checksum = content.pop("checksum", None)
    if checksum is not None and checksum != checksum_of(content, weights):
        raise ValueError("its checksum is that of another content")
    key, response = str(content.pop("key")), content.pop("response")
    if not isinstance(response, str):
        response = (float(response[0]), bool(response[1]))
    return key, Answer(response, Outcome(**content))
