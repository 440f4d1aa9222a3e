"""What workers are given and hand back: plain values that can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ablations.scoring.records import Evaluation, EvaluationRequest
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError


@dataclass(frozen=True)
class Work:
    """One model on one task."""

    score_key: str
    """Key of its record."""

    weights_key: str
    """Key of the model: an evaluator keeps it for the next item that has the same."""

    label: str
    """The first cell of it, in words."""

    merge: Mapping[str, Any]
    """The mergekit recipe of the weights."""

    request: EvaluationRequest
    """A request of a single task."""

    @property
    def task(self) -> str:
        """The task."""
        return self.request.tasks[0]


@dataclass(frozen=True)
class Done:
    """Scores and samples of a work item, and how they came about; see `TaskRecord`."""

    evaluation: Evaluation
    timing_s: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


class ModelFailed(LayerSwapError):
    """Raised by an evaluator that has no model: its experts, merge or load failed."""


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

    call: str
    """Name of the call: what failed in it is not tried again in it."""

    protocol: str = ""
    """Of the records."""

    def models(self) -> dict[str, dict[str, Work]]:
        """Return weights key -> score key -> item: cells of equal weights are one model."""
        models: dict[str, dict[str, Work]] = {}
        for cell in self.cells:
            items = models.setdefault(cell.weights_key, {})
            for task, request in cell.requests.items():
                key = cell.records[task]
                items.setdefault(key, Work(key, cell.weights_key, cell.label, cell.merge, request))
        return models
