"""The one reader of a run folder: its plan and records at once, its items when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.machine.untrusted import check_no_link
from ablations.runs.records import (
    HELD_OUT,
    OBSERVATIONS_FILE,
    RUN_FILE,
    CellRecord,
    Failure,
    RunFile,
    TaskRecord,
    is_search,
    read_failure,
    read_record,
    read_run_file,
)
from ablations.runs.written_tables import WrittenTables, read_tables
from ablations.study.cells import Cell
from ablations.study.grouping import StudyModel
from ablations.study.schema import Study
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.kinds import place_kind
from layerswap_method.recipe.references import is_folder, no_such_folder

if TYPE_CHECKING:
    import pandas as pd

    from ablations.runs.results import Results

_SHOWN_FOLDERS = 8
"""Run folders that a message lists."""


@dataclass(frozen=True)
class Run:
    """A run folder as it was when read."""

    path: Path
    head: RunFile
    cells: tuple[CellRecord, ...]
    """The cells that have a record, in the order of the study."""

    failures: Mapping[str, Failure]
    """Key of a record that is not there -> why it failed the last time."""

    copied: WrittenTables | None = None
    """The tables of a copy for readers, which it has in the place of `records`; else None."""

    @property
    def is_copy(self) -> bool:
        """Whether this is a copy for readers: `records.jsonl` in the place of `records`."""
        return self.copied is not None

    @property
    def study(self) -> Study:
        """The study, as resolved."""
        return self.head.study

    @property
    def models(self) -> tuple[StudyModel, ...]:
        """The models of the study, baselines first."""
        return self.head.models

    @property
    def records(self) -> dict[str, TaskRecord]:
        """Key -> record, each once."""
        return {record.key: record for cell in self.cells for record in cell.task_records}

    @property
    def unfinished(self) -> tuple[Cell, ...]:
        """The cells of the study that lack a record, failed ones included."""
        keys = self.records.keys()
        return tuple(cell for cell in self.head.cells if not keys >= {*cell.record_keys.values()})

    @property
    def errors(self) -> dict[str, str]:
        """Name of a cell that lacks a record -> its first failure's reason."""
        errors = dict[str, str]()
        for cell in self.head.cells:
            for key in cell.record_keys.values():
                if key in self.failures:
                    errors.setdefault(cell.label, self.failures[key].error)
        return errors

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Every score of every cell, done, failed or missing; see `table_of_scores`."""
        from ablations.runs.score_table import table_of_scores

        return table_of_scores(self.head, self.cells, self.failures)

    @cached_property
    def observations(self) -> pd.DataFrame:
        """The value of every item; see `OBSERVATIONS`.

        They are read from the tables of the run, or from its records where these are newer.

        Raises:
            LayerSwapError: for a file that is damaged or gone.
        """
        from ablations.runs.observations import items_of_record, observations_of

        items = self._written_items()
        if items is None:
            records = self.records.values()
            frames = [items_of_record(record, record.samples()) for record in records]
        else:
            frames = [items]
        return observations_of(self.models, self.cells, frames)

    @cached_property
    def results(self) -> Results:
        """The tables of the run with its study and models. Raises as `observations`."""
        from ablations.runs.results import Results

        return Results(
            self.study, self.models, self.observations, self.scores, self.head.task_languages
        )

    def _written_items(self) -> pd.DataFrame | None:
        """Return the items of the tables; None where these are not those of the records."""
        if self.copied is not None:
            return self.copied.items()
        try:
            tables = read_tables(self.path)
            return tables.items() if tables.has_items_of(self.records.values()) else None
        except LayerSwapError:  # the records have the items, too
            return None


def load_run(path: Path, head: RunFile | None = None) -> Run:
    """Return the content of the run folder `path` for the plan `head`; None is its current one.

    Of the folder of a search it is the run on the items that report.

    Raises:
        InputError: where there is no run, or one of another schema version.
        LayerSwapError: for a record that is damaged, naming the file.
    """
    path = run_folder(path)
    head = head or read_run_file(path)
    if head is None:
        raise InputError(_no_run(path))
    for name in ("records", "failures"):
        check_no_link(path / name)
    copied = read_tables(path) if holds_copy(path) else None
    records, failures = dict[str, TaskRecord](), dict[str, Failure]()
    for key in dict.fromkeys(key for cell in head.cells for key in cell.record_keys.values()):
        record = read_record(path, key) if copied is None else copied.records.get(key)
        if record is not None:
            records[key] = record
        elif (failure := read_failure(path, key)) is not None:
            failures[key] = failure
    cells = []
    for cell in head.cells:
        task_records = [records[key] for key in cell.record_keys.values() if key in records]
        if task_records:
            cells.append(CellRecord(**dict(cell), task_records=tuple(task_records)))
    return Run(path, head, tuple(cells), failures, copied)


def run_folder(path: Path) -> Path:
    """Return the run folder that a folder stands for: of a search the one that reports."""
    return path / HELD_OUT if is_search(path) else path


def holds_copy(path: Path) -> bool:
    """Return whether a run folder is a copy for readers: observations, and no `records`."""
    return not (path / "records").is_dir() and (path / OBSERVATIONS_FILE).is_file()


def _no_run(path: Path) -> str:
    """Return why a folder is no run folder, and what to do."""
    if path.name == HELD_OUT and is_search(path.parent):
        return f"{path.parent}: the search has not ended; run its command again to go on"
    fault = no_such_folder(path)
    if is_folder(path):
        fault = f"{path}: no {RUN_FILE} in it, so it is not a run folder"
        inside = sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))
        if inside:
            shown = ", ".join(map(str, inside[:_SHOWN_FOLDERS]))
            more = ", ..." if len(inside) > _SHOWN_FOLDERS else ""
            return f"{fault}; give one inside it: {shown}{more}"
        fault += place_kind(path)
    return f"{fault}; give the folder that layerswap run or evaluate wrote"
