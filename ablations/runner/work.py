"""What is asked of a model, what comes back, and who asks: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ablations.scoring.records import Evaluation, EvaluationRequest
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError


@dataclass(frozen=True)
class Work:
    """A task to ask of a model."""

    score_key: str
    """Key of the record to be."""

    weights_key: str
    """Key of the model: an evaluator keeps it for the next item that has the same."""

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
class Done:
    """Work that was done."""

    evaluation: Evaluation
    """Scores and samples."""

    timing_s: Mapping[str, float] = field(default_factory=dict)
    """Wall time of the steps, in seconds; see `TaskRecord.timing_s`."""

    provenance: Mapping[str, Any] = field(default_factory=dict)
    """See `TaskRecord.provenance`."""


class ModelFailed(LayerSwapError):
    """Raised by an evaluator that has no model to ask: its experts, merge or load failed."""


class WorkEvaluator(Protocol):
    """Evaluates work items one after the other; may keep an engine between them."""

    def evaluate(self, work: Work) -> Done:
        """Return the scores. What it raises concerns this item; the next one may be tried."""
        ...

    def check(self) -> Mapping[str, str]:
        """Look, at the end, whether the engine was right; return score key -> what is not."""
        ...

    def close(self) -> None:
        """Give back engine and memory."""
        ...


@dataclass(frozen=True)
class Job:
    """What every worker of a call is given."""

    out: Path
    """The run folder."""

    cells: Sequence[Cell]
    """With their keys."""

    evaluator: Callable[[], WorkEvaluator]
    """Makes what evaluates."""

    call: str
    """Name of the call: what failed in it is not tried again in it."""

    protocol: str = ""
    """Of the records."""

    def models(self) -> dict[str, dict[str, Work]]:
        """Return weights key -> score key -> item: cells of equal weights are one model."""
        models: dict[str, dict[str, Work]] = {}
        for cell in self.cells:
            items = models.setdefault(cell.weights_key, {})
            for item in items_of(cell):
                items.setdefault(item.score_key, item)
        return models


def items_of(cell: Cell) -> Iterator[Work]:
    """Yield an item for every task of an identified cell."""
    for task, key in cell.score_keys.items():
        request = cell.request.model_copy(update={"tasks": (task,)})
        yield Work(key, cell.weights_key, cell.label, cell.merge, request)
