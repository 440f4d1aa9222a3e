"""The results of a run: its two frames, with the study and the models that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from ablations.machine.untrusted import spreadsheet_text
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


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV, in which no text is a spreadsheet's formula."""
    shown = table.map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)
    return str(shown.to_csv(index=False, lineterminator="\n"))
