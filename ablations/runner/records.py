"""What a run leaves on disk, written whole and read back. Knows files; evaluates nothing.

RUN/run.json                   the study as resolved, its cells in order and their records
RUN/records/KEY/record.json    one task asked of one model: scores, versions, timing, provenance
RUN/records/KEY/merge.yml      the mergekit recipe that makes the model
RUN/records/KEY/samples.jsonl  one line per filter and item
RUN/failures/KEY.json          why that failed the last time
RUN/results.json               all scores, to be read (see `ablations.runner.results`)

A record belongs to weights, task and protocol, not to a cell. Its folder is written beside its
place and renamed, so it is whole or absent. `load_run` reads those of the current protocol only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from ablations.machine.json_lines import read_lines
from ablations.machine.whole_files import replaced_folder, write_text
from ablations.runner.versioned_files import (
    RUN_FILE,
    SCHEMA_VERSION,
    damaged,
    read_versioned,
    validated,
)
from ablations.scoring.records import Backend, Evaluation, Sample, TaskScore
from ablations.study.cells import Cell
from ablations.study.schema import Kind, Study, Value
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.frozen import Frozen
from layerswap_method.plan import LayerPlan, Source
from layerswap_method.recipe.references import is_folder, is_there, no_such_folder
from layerswap_method.recipe.strict_yaml import read_yaml

logger = logging.getLogger(__name__)

_SAMPLES = "samples.jsonl"


class TaskRecord(Frozen):
    """One task asked of one model: the content of ``record.json``."""

    schema_version: int = SCHEMA_VERSION
    """Of the record."""

    key: str
    """Hash of everything that can change the scores; names the folder."""

    weights_key: str
    """Hash of the weights: equal where two records are of one model."""

    protocol: str
    """Hash of how the task was asked (limit, seed, engine and its options)."""

    task: str
    """lm-eval's name."""

    label: str
    """The cell that it was evaluated for, in words."""

    evaluation: Evaluation
    """Scores, versions and notes; the samples are in a file of their own."""

    timing_s: dict[str, float]
    """Wall time in seconds: ``total``, and what there was of ``merge`` (by mergekit), ``start`` (of
    an engine), ``load`` (weights into the live engine) and ``evaluate``."""

    provenance: dict[str, Any]
    """Request, code, how the weights got into the engine, when and where."""

    sample_lines: int | None = None
    """Lines of ``samples.jsonl``; None in records of older versions."""

    folder: Path = Field(default=Path(), exclude=True)
    """Where its files are."""

    def samples(self) -> Iterator[Sample]:
        """Yield the records of all items, as they were asked.

        Raises:
            LayerSwapError: at a line that is damaged, and for a file that is gone or lacks lines.
        """
        path = self.folder / _SAMPLES
        number = 0
        try:
            for number, line in read_lines(path):
                yield validated(Sample, line, f"{path}:{number}")
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(path, error) from error
        if self.sample_lines not in (None, number):
            raise damaged(path, f"{number} of {self.sample_lines} lines are there")


class PlannedCell(Frozen):
    """A cell of the current plan, in the order of the study."""

    label: str
    """The cell in words, unique in its study."""

    kind: Kind
    """The study's recipe, or a baseline."""

    values: dict[str, Value]
    """What is varied, as the study gives it (before scaling to the model's depth)."""

    experts: dict[str, str]
    """Role (``task``, ``language``, ``base``) -> name of the expert."""

    language: str | None = None
    """Code of the language expert's language, where the study names one."""

    plan: tuple[Source, ...] | None
    """Source of every layer, embedding side first; None where no layer is swapped."""

    weights_key: str
    """Hash of the weights: equal where two cells are one model."""

    records: dict[str, str]
    """Task -> key of its record, in the order of the request."""

    skipped: dict[str, str] = Field(default_factory=dict)
    """Task of the request that is not asked -> why."""

    @classmethod
    def of(cls, cell: Cell) -> PlannedCell:
        """Return an identified cell as it is written down."""
        return cls(
            label=cell.label,
            kind=cell.kind,
            values=dict(cell.values),
            experts=dict(cell.experts),
            language=cell.language,
            plan=None if cell.plan is None else cell.plan.sources,
            weights_key=cell.weights_key,
            records=dict(cell.score_keys),
            skipped=dict(cell.skipped),
        )


class CellRecord(PlannedCell):
    """A cell with the records that it has."""

    tasks: tuple[TaskRecord, ...] = Field(min_length=1)
    """In the order of the request; all of them only if the cell is finished."""

    @property
    def scores(self) -> tuple[TaskScore, ...]:
        """Every metric and filter of every task."""
        return tuple(score for each in self.tasks for score in each.evaluation.scores)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the scores must know; see `Evaluation.notes`."""
        return tuple(note for each in self.tasks for note in each.evaluation.notes)

    @property
    def backend(self) -> Backend:
        """The engine that really ran."""
        return self.tasks[0].evaluation.backend

    @property
    def timing_s(self) -> dict[str, float]:
        """Seconds by step, of all tasks together."""
        names = dict.fromkeys(name for each in self.tasks for name in each.timing_s)
        return {name: sum(each.timing_s.get(name, 0.0) for each in self.tasks) for name in names}

    @property
    def provenance(self) -> dict[str, Any]:
        """That of the first task."""
        return self.tasks[0].provenance

    @property
    def layer_plan(self) -> LayerPlan | None:
        """The plan, to draw or describe."""
        return None if self.plan is None else LayerPlan(self.plan)

    @property
    def merge(self) -> dict[str, Any]:
        """The mergekit recipe that makes the same weights."""
        return dict(read_yaml(self.tasks[0].folder / "merge.yml"))

    def evaluation(self) -> Evaluation:
        """Return the scores of all tasks as one evaluation, without samples."""
        first = self.tasks[0].evaluation
        return first.model_copy(update={"scores": self.scores, "notes": self.notes})

    def samples(self) -> Iterator[Sample]:
        """Yield the records of all items of all tasks; see `TaskRecord.samples`."""
        for each in self.tasks:
            yield from each.samples()


class Failure(Frozen):
    """Why a task of a model failed the last time it was tried."""

    schema_version: int = SCHEMA_VERSION
    """Of the record."""

    key: str
    """Of the record that there would be."""

    task: str
    """lm-eval's name."""

    label: str
    """The cell in words."""

    error: str
    """The message."""

    details: str = ""
    """The traceback, where the error is not one that explains itself."""

    when: str
    """UTC, ISO 8601."""

    attempt: int
    """1 for the first failure, then counting."""

    call: str = ""
    """Of `Job`: who is told of it as of something new."""


_FORMER_KEYS = ("allow_code_execution", "code_isolation")
"""Of `evaluate` in run files of earlier versions; the command line alone says them now."""


class RunFile(Frozen):
    """The content of ``run.json``."""

    @model_validator(mode="before")
    @classmethod
    def _without_former_keys(cls, data: Any) -> Any:
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            for key in _FORMER_KEYS:
                data["study"]["evaluate"].pop(key, None)
        return data

    schema_version: int = SCHEMA_VERSION
    """Of everything in the folder."""

    study: Study
    """The study, with `experts file` values written into it."""

    question: str
    """The study's question."""

    experts: dict[str, str]
    """Expert name -> folder, or hub id with its commit; ``base+adapter`` of either."""

    cells: tuple[PlannedCell, ...]
    """Every cell of the study, in order; not only the finished ones."""

    num_layers: int | None
    """Decoder layers of the model."""

    protocol: str
    """Hash of how tasks are asked; see `TaskRecord`."""

    notes: tuple[str, ...] = ()
    """What the plan had to say aloud: scaled layer counts, cells that share weights."""

    created: str
    """UTC, ISO 8601."""

    versions: dict[str, str]
    """Versions of this project and of what can change a score."""


class Run(Frozen):
    """A run folder as it was when read."""

    path: Path
    """The folder."""

    head: RunFile
    """`run.json`."""

    cells: tuple[CellRecord, ...]
    """The cells that have a record, in the order of the study."""

    failures: tuple[Failure, ...]
    """Of the cells that lack one: the first failure of each, in the order of the study."""

    @property
    def study(self) -> Study:
        """The study, as resolved."""
        return self.head.study

    @property
    def unfinished(self) -> tuple[PlannedCell, ...]:
        """The planned cells that lack a record, failed ones included."""
        done = {task.key for cell in self.cells for task in cell.tasks}
        return tuple(cell for cell in self.head.cells if not done >= set(cell.records.values()))


def load_run(path: Path) -> Run:
    """Return what the run folder `path` holds of its current plan.

    Raises:
        InputError: where there is no run, or one of another schema version.
        LayerSwapError: for a record that is damaged, naming the file.
    """
    head = read_run_file(path)
    if head is None:
        if is_there(path) and not is_folder(path):
            raise InputError(f"{path}: is a file; give the folder that layerswap run wrote")
        if not is_folder(path):
            raise InputError(f"{no_such_folder(path)}; give the folder that layerswap run wrote")
        below = (f"did you mean {file.parent}?" for file in sorted(path.glob(f"[!.]*/{RUN_FILE}")))
        hint = next(below, "layerswap run makes one")
        raise InputError(f"{path}: no {RUN_FILE} in it, so it is not a run folder; {hint}")
    keys = dict.fromkeys(key for cell in head.cells for key in cell.records.values())
    found = {key: read_record(path, key) for key in keys}
    cells, failures = [], []
    for cell in head.cells:
        tasks = [task for key in cell.records.values() if (task := found[key]) is not None]
        if tasks:
            cells.append(CellRecord(**dict(cell), tasks=tuple(tasks)))
        failed = (read_failure(path, k) for k in cell.records.values() if found[k] is None)
        first = next((failure for failure in failed if failure is not None), None)
        if first is not None:
            failures.append(first.model_copy(update={"label": cell.label}))
    return Run(path=path, head=head, cells=tuple(cells), failures=tuple(failures))


def read_run_file(path: Path) -> RunFile | None:
    """Return `run.json` of the folder `path`; None where there is none."""
    return read_versioned(RunFile, path / RUN_FILE)


def write_run_file(path: Path, head: RunFile) -> None:
    """Write `run.json`."""
    write_text(path / RUN_FILE, head.model_dump_json(indent=2) + "\n")


def is_finished(path: Path, key: str) -> bool:
    """Return whether there is such a record, with its samples. Opens no file."""
    folder = path / "records" / key
    return (folder / "record.json").is_file() and (folder / _SAMPLES).is_file()


def is_whole(path: Path, key: str, *, warn: bool = False) -> bool:
    """Return whether there is a record that can be read; a damaged one is as good as none.

    Args:
        path: the run folder.
        key: of the record.
        warn: whether to say of a damaged one that it is made anew.

    Raises:
        InputError: for another schema version.
    """
    if not is_finished(path, key):
        return False
    try:
        return read_record(path, key) is not None
    except LayerSwapError as error:
        if error.exit_code == 2:
            raise
        if warn:
            logger.warning("%s; the task is asked again", error.message)
        return False


def write_record(path: Path, record: TaskRecord, merge: dict[str, Any]) -> None:
    """Write a record, whole or not at all, and drop its failure.

    Args:
        path: the run folder.
        record: with its samples in `evaluation`.
        merge: the mergekit recipe that makes the weights.
    """
    with replaced_folder(path / "records" / record.key) as fresh:
        lines = [sample.model_dump_json() + "\n" for sample in record.evaluation.samples]
        (fresh / _SAMPLES).write_text("".join(lines), encoding="utf-8")
        text = yaml.safe_dump(merge, sort_keys=False, allow_unicode=True)
        (fresh / "merge.yml").write_text(text, encoding="utf-8")
        whole = record.model_copy(update={"sample_lines": len(lines)})
        text = whole.model_dump_json(indent=2, exclude={"evaluation": {"samples"}}) + "\n"
        (fresh / "record.json").write_text(text, encoding="utf-8")
    _failure_path(path, record.key).unlink(missing_ok=True)


def read_record(path: Path, key: str) -> TaskRecord | None:
    """Return a record without its samples; None where there is none."""
    folder = path / "records" / key
    record = read_versioned(TaskRecord, folder / "record.json")
    return None if record is None else record.model_copy(update={"folder": folder})


def write_failure(path: Path, failure: Failure) -> None:
    """Write why a task failed, in place of what was written before."""
    write_text(_failure_path(path, failure.key), failure.model_dump_json(indent=2) + "\n")


def read_failure(path: Path, key: str) -> Failure | None:
    """Return why a task failed the last time; None where it did not."""
    return read_versioned(Failure, _failure_path(path, key))


def _failure_path(path: Path, key: str) -> Path:
    return path / "failures" / f"{key}.json"
