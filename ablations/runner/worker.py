"""A worker: claims a model that is free, evaluates its missing tasks, and writes the records.

Workers of one command, of several commands (an array job) and of a cluster are the same; they
share a run folder and nothing else. What was under way when a worker was killed is done again.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from ablations.machine.locks import Claim, holder, owner, try_claim
from ablations.machine.whole_files import DiskFull, is_full
from ablations.runner.work import Engine, Job, ModelFailed, Work, now
from ablations.runs import records
from ablations.runs.records import Failure, TaskRecord
from ablations.scoring.evaluation import TaskFailed
from layerswap_method.errors import LayerSwapError

logger = logging.getLogger(__name__)

LOCKS = ".locks"
"""Folder of the claims in a run folder; a model's has the name of its weights key."""

_WAIT_S = 0.3


def evaluate_claimed(
    job: Job,
    look: Callable[[], object] = lambda: None,
    begin: Callable[[Work], object] = lambda work: None,
) -> None:
    """Evaluate the missing tasks of every model of `job` that no other worker holds.

    Models that others work on are waited for, and those at which a worker was killed come last.
    What fails is noted with its reason, and the rest goes on. `begin` is called before every task
    with it, and `look` after it.
    """
    engine = job.make_engine()
    try:
        _Worker(job, engine, look, begin).run()
    finally:
        engine.close()


class _Worker:
    def __init__(
        self,
        job: Job,
        engine: Engine,
        look: Callable[[], object],
        begin: Callable[[Work], object],
    ):
        self._job, self._engine, self._look, self._begin = job, engine, look, begin
        self._works = job.works()
        self._locks = job.out / LOCKS
        self._waits_for = set[str]()

    def run(self) -> None:
        models = dict.fromkeys(work.cell.weights_key for work in self._works.values())
        waiting = sorted(models, key=lambda key: owner(self._locks, key) is not None)
        while waiting:
            # Each time from the first: one that was held may be free now.
            ended = next((key for key in waiting if self._try(key)), None)
            if ended is None:
                time.sleep(_WAIT_S)
            else:
                waiting.remove(ended)

    def _try(self, model: str) -> bool:
        """Do what is missing of a model; return False where another worker holds it."""
        works = [work for work in self._works.values() if work.cell.weights_key == model]
        if not self._missing(works):
            return True
        try:
            claim = try_claim(self._locks, model, self._job.call)
        except OSError as error:
            self._check_room(error)
            self._fail(self._missing(works), f"it cannot be claimed: {error}")
            return True
        if claim is None:
            if model not in self._waits_for:
                self._waits_for.add(model)
                who = holder(self._locks, model)
                logger.info("  %s: %s works on it", works[0].cell.label, who)
            return False
        try:
            self._do(works, claim)
        finally:
            claim.release()
        return True

    def _missing(self, works: Iterable[Work]) -> list[Work]:
        return [work for work in works if self._job.outcome(work.key) is None]

    def _do(self, works: Sequence[Work], claim: Claim) -> None:
        for work in works:  # half written by a worker that was killed: nobody else is writing it
            for path in self._job.out.glob(f"*/.{work.key}.*"):
                path.unlink(missing_ok=True)
        left = self._missing(works)
        last = claim.abandoned
        if last is not None and last.note == self._job.call:
            self._fail(
                left, f"{last.process} was killed while it worked on this (often: out of memory)"
            )
            return
        while left:
            work = left.pop(0)
            self._begin(work)
            try:
                self._evaluate(work)
            except DiskFull:
                raise
            except ModelFailed as error:
                self._fail([work, *left], error.message)
                return
            except TaskFailed as error:  # the failure has the task
                self._fail([work], error.reason)
            except LayerSwapError as error:
                self._fail([work], error.message)
            except Exception as error:
                first = (str(error).strip() or "(no message)").splitlines()[0]
                self._fail([work], f"{type(error).__name__}: {first}", traceback.format_exc())
            else:  # a closed pipe of the output is no failure of the task
                self._look()

    def _evaluate(self, work: Work) -> None:
        started = time.monotonic()
        evaluation, provenance = self._engine.evaluate(work)
        label, total_s = work.cell.label, time.monotonic() - started
        record = TaskRecord(
            key=work.key,
            weights_key=work.cell.weights_key,
            protocol=self._job.protocol_key,
            task=work.task,
            label=label,
            evaluation=evaluation.model_copy(update={"model": label}),
            timing_s={"total": total_s, "evaluate": evaluation.elapsed_s},
            provenance={**provenance, "finished": now(), "call": self._job.call},
        )
        try:
            records.write_record(self._job.out, record)
        except OSError as error:
            self._check_room(error)
            raise LayerSwapError(f"its record cannot be written: {error}") from error

    def _check_room(self, error: OSError) -> None:
        """Raise `DiskFull` where there is no room: every other task would be lost as well."""
        if is_full(error):
            raise DiskFull(
                f"{self._job.out}: cannot be written: {error.strerror}. Stored answers and records "
                "stay: make room and run the same command again"
            ) from error

    def _fail(self, works: Iterable[Work], error: str, details: str = "") -> None:
        for work in works:
            label, task = work.cell.label, work.task
            facts = {"label": label, "error": error, "details": details, "call": self._job.call}
            try:
                records.write_failure(self._job.out, Failure(key=work.key, task=task, **facts))
            except OSError as fault:
                logger.warning("  %s: %s failed: %s", label, task, error)
                self._check_room(fault)
            self._look()
