"""What a run shows, derived once: its comparisons, the scores of its models, its grid.

The report, `layerswap compare`, `layerswap power`, the answer of the quickstart, Python and the
pictures of the findings take their numbers from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

import pandas as pd

from ablations.report import comparisons as compared
from ablations.report import model_scores
from ablations.report.comparisons import TaskComparison
from ablations.report.contrasts import Contrast
from ablations.report.grids import ParameterGrid, differences_to_best, find_grid
from ablations.report.model_scores import ModelScore
from ablations.report.shown_tasks import ShownTasks, shown_tasks
from ablations.runs.results import Results
from ablations.runs.run import Run
from ablations.study.grouping import StudyModel
from ablations.study.schema import Study

_COUNTS = ("pairs", "above")
"""Columns of counts that are numbers also where all of their values are gaps, as are floats."""


@dataclass(frozen=True)
class Analysis:
    """The numbers of a run, or of several that are compared; each is computed at its first use."""

    results: Results
    shown: ShownTasks
    """The tasks, with the metric that is shown of each."""

    contrasts: tuple[Contrast, ...] | None = None
    """What is compared; None takes the contrasts of the study."""

    @property
    def study(self) -> Study:
        """The study, as resolved."""
        return self.results.study

    @property
    def models(self) -> tuple[StudyModel, ...]:
        """The models of the study, baselines first."""
        return self.results.models

    @cached_property
    def comparisons(self) -> tuple[TaskComparison, ...]:
        """Every comparison, primary ones first."""
        return compared.comparisons(self.results, self.shown, self.contrasts)

    @cached_property
    def scores(self) -> tuple[ModelScore, ...]:
        """The score of every model on every task, primary tasks first."""
        return model_scores.model_scores(self.results, self.shown)

    @cached_property
    def comparison_frame(self) -> pd.DataFrame:
        """A row for each of `comparisons`; the columns are the fields of `TaskComparison`."""
        return _frame(TaskComparison, self.comparisons, compared.COLUMNS)

    @cached_property
    def score_frame(self) -> pd.DataFrame:
        """A row for each of `scores`; the columns are the fields of `ModelScore`."""
        return _frame(ModelScore, self.scores, model_scores.COLUMNS)

    @cached_property
    def grid(self) -> ParameterGrid | None:
        """The grid of the study's merges; None where they are none."""
        return find_grid(self.study, self.models)

    @cached_property
    def best(self) -> pd.DataFrame | None:
        """How far each model of the grid is from the best; see `differences_to_best`."""
        if self.grid is None:
            return None
        return differences_to_best(self.results, self.shown, self.score_frame, self.grid)


def analyse(
    source: Run | Results,
    *,
    metric: str | None = None,
    contrasts: Sequence[Contrast] | None = None,
) -> Analysis:
    """Return the analysis of a run, or of the joined results of several.

    Args:
        source: a run with its records, or results of several that were joined.
        metric: shown of the tasks that have it; None takes the one of the study's report.
        contrasts: what is compared; None takes the contrasts of the study.

    Raises:
        InputError: for items that are damaged. Comparisons raise it for a task of the study's
            report that is not in the run.
    """
    results = source.results if isinstance(source, Run) else source
    if metric is not None:
        report = results.study.report.model_copy(update={"metric": metric})
        results = results._replace(study=results.study.model_copy(update={"report": report}))
    stated = None if contrasts is None else tuple(contrasts)
    return Analysis(results, shown_tasks(results), stated)


def _frame(kind: type, rows: Sequence[Any], columns: Sequence[str]) -> pd.DataFrame:
    """Return a row for each value of a dataclass; None is a gap."""
    stated = [{name: part for name, part in vars(row).items() if part is not None} for row in rows]
    frame = pd.DataFrame(stated, columns=list(columns))
    types = get_type_hints(kind)
    numbers = [name for name in columns if types[name] == float | None or name in _COUNTS]
    return frame.astype(dict.fromkeys(numbers, "float64"))
