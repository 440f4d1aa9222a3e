"""The results of a run: its two tables, with the study and the models that they are of."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from ablations.machine.safe_text import spreadsheet_text
from ablations.machine.whole_files import write_bytes, write_text
from ablations.runs.examples import write_examples
from ablations.runs.observations import read_observations
from ablations.runs.records import OBSERVATIONS_FILE, RECORDS_FILE, Run, copied_records
from ablations.runs.score_table import table_of_scores
from ablations.study.grouping import StudyModel
from ablations.study.schema import Study

SCORES_FILE = "scores.csv"


class Results(NamedTuple):
    """The results of a run, or of several that are compared."""

    study: Study
    models: tuple[StudyModel, ...]
    observations: pd.DataFrame
    """The value of every item; see `observations.OBSERVATIONS`."""

    scores: pd.DataFrame
    """Every score of every cell; see `table_of_scores`."""

    task_languages: Mapping[str, str]
    """Task -> code of its language, where its metadata state one."""


def read_results(run: Run) -> Results:
    """Return the results of a run. Raises as `read_observations`."""
    return Results(
        run.study,
        run.models,
        read_observations(run),
        table_of_scores(run),
        run.head.task_languages,
    )


def write_results(run: Run) -> Results:
    """Write the scores, observations, first lines of all records and examples of a run.

    Returns the scores and observations, which are read of every item.
    """
    results = read_results(run)
    records = {task.key: task for cell in run.cells for task in cell.tasks}
    file = io.BytesIO()
    results.observations.to_parquet(file, index=False)
    write_text(run.path / SCORES_FILE, csv_text(results.scores))
    write_text(run.path / RECORDS_FILE, copied_records(records.values(), file.getvalue()))
    write_bytes(run.path / OBSERVATIONS_FILE, file.getvalue())
    write_examples(run)
    return results


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV, in which no text is a spreadsheet's formula."""
    shown = table.map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)
    return str(shown.to_csv(index=False, lineterminator="\n"))
