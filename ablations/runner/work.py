"""What goes to an engine and what comes back. Knows no engine, process or file.

A work item is small and picklable: tensors never travel, paths do.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ablations.scoring.records import Evaluation, EvaluationRequest
from layerswap_method.errors import LayerSwapError


@dataclass(frozen=True)
class Work:
    """A task to ask of a model."""

    score_key: str
    """Of the record to be."""

    weights_key: str
    """Of the model: an evaluator keeps it for the next item that has the same."""

    label: str
    """The first cell that is about it, in words."""

    merge: Mapping[str, Any]
    """The mergekit recipe of the weights."""

    request: EvaluationRequest
    """What is asked: a single task."""

    @property
    def task(self) -> str:
        """The task."""
        return self.request.tasks[0]


@dataclass(frozen=True)
class Doubt:
    """What was evaluated in an engine that has since turned out to be wrong."""

    score_keys: tuple[str, ...]
    """Of the items since the engine was last known to be right; they are to be done again."""

    reason: str
    """What is wrong with the engine."""


@dataclass(frozen=True)
class Done:
    """Work that was done."""

    evaluation: Evaluation
    """Scores and records."""

    timing_s: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the steps, in seconds; see `TaskRecord.timing_s`."""

    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the weights got into the engine; why not the usual way, if so."""

    doubt: Doubt | None = None
    """What the evaluator had to say of earlier items before it began this one."""


@dataclass(frozen=True)
class Failed:
    """Work that was not done."""

    error: str
    """One message."""

    details: str = ""
    """A traceback, where the message is not one of ours."""

    lost: bool = False
    """Whether the place where it ran went away, so that it may be tried at another."""

    of_model: bool = False
    """Whether no other task of the same model need be tried."""

    doubt: Doubt | None = None
    """As in `Done`."""


Outcome = Done | Failed


class ModelFailed(LayerSwapError):
    """Raised by an evaluator that has no model to ask: its experts, merge or load failed."""


class WorkEvaluator(Protocol):
    """Evaluates work items one after the other; may keep an engine between them."""

    def evaluate(self, work: Work) -> Done:
        """Return the scores. What it raises concerns this item; the next one may be tried."""
        ...

    def check(self, work: Work | None) -> Doubt | None:
        """Look whether the engine is still right, if it is time to; return what is not.

        Args:
            work: what comes next; None at the end, when it is always time.
        """
        ...

    def close(self) -> None:
        """Give back engine and memory."""
        ...


class Executor(Protocol):
    """Runs work items somewhere, at most `slots` at once."""

    @property
    def slots(self) -> int:
        """Items that may be under way at once; may change between calls, and is 1 or more."""
        ...

    def submit(self, work: Work) -> None:
        """Begin an item; call only while fewer than `slots` are under way."""
        ...

    def collect(self) -> Sequence[tuple[Work, Outcome]]:
        """Return items that have ended; waits a moment for one, and may return none."""
        ...

    def settle(self) -> Sequence[Doubt]:
        """Have every idle engine checked; return what is in doubt. Call when nothing is left."""
        ...

    def close(self) -> None:
        """End what is under way and every engine."""
        ...


def attempt(evaluator: WorkEvaluator, work: Work) -> Outcome:
    """Return what became of `work`; a failure is a value here, for it concerns one item only."""
    doubt = evaluator.check(work)
    return dataclasses.replace(_attempt(evaluator, work), doubt=doubt)


def _attempt(evaluator: WorkEvaluator, work: Work) -> Outcome:
    try:
        return evaluator.evaluate(work)
    except LayerSwapError as error:
        return Failed(error.message, of_model=isinstance(error, ModelFailed))
    except Exception as error:
        first = (str(error).strip() or "(no message)").splitlines()[0]
        return Failed(f"{type(error).__name__}: {first}", details=traceback.format_exc())
