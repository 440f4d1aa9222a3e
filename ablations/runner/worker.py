"""A worker: claims a model that is free, evaluates its missing tasks, and writes the records.

Workers of one command, of several commands (an array job) and of a cluster are the same; they
share a run folder and nothing else. What was under way when a worker was killed is done again.
"""

from __future__ import annotations

import datetime
import logging
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ablations.machine.locks import holder, try_claim
from ablations.runner import records
from ablations.runner.work import Job, ModelFailed, Work, WorkEvaluator
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from ablations.machine.locks import Claim

logger = logging.getLogger(__name__)

LOCKS = ".locks"
"""Folder of the claims in a run folder; a model's has the name of its weights key."""

_WAIT_S = 0.3


def work(job: Job, look: Callable[[], object] = lambda: None) -> None:
    """Evaluate the missing tasks of every model of `job` that no other worker holds.

    Models that others work on are waited for. What fails is noted with its reason, and the rest
    goes on.

    Args:
        job: what is to be done.
        look: called after every item.
    """
    evaluator = job.evaluator()
    try:
        _Worker(job, evaluator, look).run()
    finally:
        evaluator.close()


class _Worker:
    def __init__(self, job: Job, evaluator: WorkEvaluator, look: Callable[[], object]):
        self._job = job
        self._evaluator = evaluator
        self._look = look
        self._models = job.models()
        self._named = set[str]()

    def run(self) -> None:
        waiting = list(self._models)
        while waiting:
            # Each time from the first: one that was held may be free now.
            ended = next((key for key in waiting if self._try(key)), None)
            if ended is None:
                time.sleep(_WAIT_S)
            else:
                waiting.remove(ended)
        for key, error in self._evaluator.check().items():
            self._fail(next(items[key] for items in self._models.values() if key in items), error)

    def _try(self, key: str) -> bool:
        """Do what is missing of a model; return False where another worker holds it."""
        items, locks = self._models[key], self._job.out / LOCKS
        if not self._missing(items):
            return True
        try:
            claim = try_claim(locks, key, self._job.call)
        except OSError as error:
            for item in items.values():
                self._fail(item, f"it cannot be claimed: {error}")
            return True
        if claim is None:
            if key not in self._named:
                self._named.add(key)
                label = next(iter(items.values())).label
                logger.info("  %s: %s works on it", label, holder(locks, key))
            return False
        try:
            self._do(items, claim)
        finally:
            claim.release()
        return True

    def _missing(self, items: dict[str, Work]) -> list[Work]:
        return [item for key, item in items.items() if not self._has_ended(key)]

    def _has_ended(self, key: str) -> bool:
        if records.is_finished(self._job.out, key):
            return True
        failure = records.read_failure(self._job.out, key)
        return failure is not None and failure.call == self._job.call

    def _do(self, items: dict[str, Work], claim: Claim) -> None:
        for key in items:  # half written by a worker that was killed: nobody else is writing it
            for path in self._job.out.glob(f"*/.{key}.*"):
                path.unlink(missing_ok=True)
        left = self._missing(items)
        if claim.abandoned.endswith(f"\n{self._job.call}"):
            who = claim.abandoned.partition("\n")[0]
            for item in left:
                self._fail(item, f"{who} was killed while it worked on this (often: out of memory)")
            return
        while left:
            item = left.pop(0)
            try:
                self._evaluate(item)
            except ModelFailed as error:
                for each in (item, *left):
                    self._fail(each, error.message)
                return
            except LayerSwapError as error:
                self._fail(item, error.message)
            except Exception as error:
                first = (str(error).strip() or "(no message)").splitlines()[0]
                self._fail(item, f"{type(error).__name__}: {first}", traceback.format_exc())

    def _evaluate(self, item: Work) -> None:
        started = time.monotonic()
        done = self._evaluator.evaluate(item)
        record = records.TaskRecord(
            key=item.score_key,
            weights_key=item.weights_key,
            protocol=self._job.protocol,
            task=item.task,
            label=item.label,
            evaluation=done.evaluation.model_copy(update={"model": item.label}),
            timing_s={**done.timing_s, "total": time.monotonic() - started},
            provenance={**done.provenance, "finished": now(), "call": self._job.call},
        )
        try:
            records.write_record(self._job.out, record)
        except OSError as error:
            raise LayerSwapError(f"its record cannot be written: {error}") from error
        self._look()

    def _fail(self, item: Work, error: str, details: str = "") -> None:
        try:
            failure = records.Failure(
                key=item.score_key,
                task=item.task,
                label=item.label,
                error=error,
                details=details,
                call=self._job.call,
            )
            records.write_failure(self._job.out, failure)
        except OSError:  # a full disk
            logger.warning("  %s: %s failed: %s", item.label, item.task, error)
        self._look()


def now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
