"""Averages over pairs of experts, with intervals and gaps. Knows scores; no layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.report.comparisons import Comparer
from ablations.report.design import Group, Model
from ablations.report.observations import Measure, Observations
from ablations.scoring.records import TaskScore


@dataclass(frozen=True)
class Summary:
    """What the cells of some models scored on one measure."""

    average: float
    """Mean over the cells that there are; see `factors.Level.models` for how they weigh."""

    worst: float
    """Of them, by the direction of the measure."""

    best: float
    """Likewise."""

    interval: tuple[float, float] | None
    """Of the average, over experts and items; a single cell's own. None where none is derived."""

    cells: int
    """Cells that there are."""

    expected: int
    """Cells that the study plans."""


class Summaries:
    """Summaries of a run, computed once each."""

    def __init__(self, observations: Observations, comparer: Comparer) -> None:
        """Take the cells, and how their intervals are computed."""
        self.observations = observations
        self._comparer = comparer
        self._known: dict[tuple[tuple[Model, ...], Group, Measure], Summary | None] = {}

    def of(self, models: Sequence[Model], group: Group, measure: Measure) -> Summary | None:
        """Return the summary of all cells of `models`; None where there is none."""
        key = (tuple(models), group, measure)
        if key not in self._known:
            self._known[key] = self._summarise(*key)
        return self._known[key]

    def best_of(
        self, models: Sequence[Model], group: Group, measure: Measure, what: str = "average"
    ) -> tuple[Model, Summary] | None:
        """Return the model with the best `what` of its summary; None where none has a cell."""
        found = [
            (model, summary)
            for model in models
            if (summary := self.of([model], group, measure)) is not None
        ]
        sign = 1 if measure.higher_is_better else -1
        return max(found, key=lambda each: sign * float(getattr(each[1], what)), default=None)

    def _summarise(
        self, models: tuple[Model, ...], group: Group, measure: Measure
    ) -> Summary | None:
        scores: list[tuple[TaskScore, int]] = []
        expected = 0
        for model, weight in Counter(models).items():
            planned = self.observations.cells(model, group).values()
            expected += len(planned)
            found = [self.observations.score(cell, measure) for cell in planned if cell is not None]
            scores += [(score, weight) for score in found if score is not None]
        if not scores:
            return None
        values = [score.value for score, _ in scores]
        interval = None
        single = scores[0][0].interval
        if len(scores) == 1 and single is not None and single.low < single.high:
            interval = (single.low, single.high)
        elif items := self.observations.items(group, measure):
            block = self.observations.block(models, group, measure, items)
            interval = None if block is None else self._comparer.interval(block)
        ends = sorted(values, reverse=not measure.higher_is_better)
        return Summary(
            average=sum(score.value * weight for score, weight in scores)
            / sum(weight for _, weight in scores),
            worst=ends[0],
            best=ends[-1],
            interval=interval,
            cells=len(scores),
            expected=expected,
        )
