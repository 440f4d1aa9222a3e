"""The files of a run, written whole and read back.

RUN/run.json             the study as resolved, its cells in order and the keys of their records
RUN/records/KEY.jsonl    one model on one task: a line with scores, versions and timing, then a
                         line for every filter and item
RUN/failures/KEY.json    why that failed the last time
RUN/scores.csv           all scores, for people and scripts
RUN/observations.parquet the value of every item
RUN/examples.jsonl       a few answers with their prompts; see `ablations.runs.examples`
RUN/records.jsonl        the first line of every record: with `run.json` and the observations all
                         that a reader needs, so a copy need not have `records`

A record is a view over stored answers (`ablations.engines.answers`), which hold the texts. It
belongs to weights, task and protocol, not to a cell.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from ablations.machine.fingerprint import checksum_of
from ablations.machine.untrusted import (
    MOST_BYTES,
    check_name,
    open_regular,
    printable_parts,
    read_regular,
    read_regular_lines,
)
from ablations.machine.whole_files import write_text
from ablations.scoring.evaluation import (
    Backend,
    Evaluation,
    Sample,
    TaskScore,
)
from ablations.scoring.observed import zero_reasons
from ablations.study.cells import Cell
from ablations.study.grouping import StudyModel, derive_models
from ablations.study.schema import Study
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.frozen import Frozen

SCHEMA_VERSION = 7
"""Version of the form of a run folder; `run.json` states it."""

RUN_FILE = "run.json"
OBSERVATIONS_FILE = "observations.parquet"
RECORDS_FILE = "records.jsonl"
SEARCH_FILE = "search.json"
HELD_OUT = "held_out"
"""Folder in that of a search: the run on the items that report. The others are its rounds."""

logger = logging.getLogger(__name__)

_Model = TypeVar("_Model", bound=BaseModel)


class TaskRecord(Frozen):
    """The scores of one model on one task."""

    key: str
    """Hash of everything that can change the scores; names the file."""

    weights_key: str

    protocol: str
    """The plan's `protocol_key`."""

    task: str
    label: str
    """The cell that it was evaluated for, in words."""

    evaluation: Evaluation
    """Its scores, without samples."""

    timing_s: dict[str, float]
    """Wall time in seconds: ``total``, of which ``evaluate`` was not spent on getting the model."""

    provenance: dict[str, Any]
    """Facts of the making: way of the weights into the engine, place of the answers, time."""

    no_answers: dict[str, str] = Field(default_factory=dict)
    """Filter -> why it scores 0, where a reason is plain; see `zero_reasons`."""

    items: int = 0
    """Lines that follow."""

    items_sha256: str = ""
    """Hash of these lines; empty in records from before it."""

    path: Path = Field(default=Path(), exclude=True)

    def samples(self) -> Iterator[Sample]:
        """Yield all items; their prompts and responses are in other files.

        Raises:
            LayerSwapError: at a line that is damaged, and for a file that is gone or lacks lines.
        """
        number, content = 0, hashlib.sha256()
        try:
            for number, line in read_regular_lines(self.path):
                if number > 1:
                    content.update(line.encode())
                    sample = stored_value(Sample, line, f"{self.path}:{number}")
                    check_written_names(self.path, [sample.task, sample.filter, *sample.values])
                    yield sample
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(self.path, error) from error
        if number != self.items + 1:
            raise damaged(self.path, f"it has {number - 1} of {self.items} items")
        if self.items_sha256 not in ("", content.hexdigest()):
            raise damaged(self.path, "an item is not what was written")


class CellRecord(Cell):
    """A cell with the records that it has."""

    task_records: tuple[TaskRecord, ...] = Field(min_length=1)
    """Its records in the order of the request; all of them only if the cell is finished."""

    @property
    def scores(self) -> tuple[TaskScore, ...]:
        """Every metric and filter of every task."""
        return tuple(score for record in self.task_records for score in record.evaluation.scores)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the scores; see `Evaluation.notes`."""
        return tuple(note for record in self.task_records for note in record.evaluation.notes)

    @property
    def backend(self) -> Backend:
        """The engine that really ran."""
        return self.task_records[0].evaluation.backend


class Failure(Frozen):
    """The reason for which a task of a model failed the last time it was tried."""

    key: str
    """Key of the record that the task would have had."""

    task: str
    label: str
    error: str
    details: str = ""
    """The traceback, where the error is not one that explains itself."""

    call: str = ""
    """Name of the call in which it failed; see `Job`."""


class RunFile(Frozen):
    """The content of ``run.json``."""

    schema_version: int = SCHEMA_VERSION
    study: Study
    """The study, with the values of the experts file."""

    experts: dict[str, str]
    """Expert name -> folder as seen from the run folder, or hub id with its commit;
    ``base+adapter`` of either."""

    cells: tuple[Cell, ...]
    """Every cell of the study, in order; not only the finished ones."""

    num_layers: int | None
    protocol: str
    notes: tuple[str, ...] = ()
    """Notes of the plan: scaled layer counts, cells that share weights."""

    created: str
    """Time of creation in UTC, ISO 8601."""

    versions: dict[str, str]
    """Package -> version, of this project and of what can change a score."""

    models: tuple[StudyModel, ...]
    """The models of the study, baselines first; see `derive_models`."""

    task_languages: dict[str, str] = Field(default_factory=dict)
    """Task -> code of its language, where its metadata state one."""

    @classmethod
    def of_cells(
        cls, study: Study, cells: Sequence[Cell], num_layers: int | None, **fields: Any
    ) -> RunFile:
        """Return the content for cells of a study, with the models that are derived of them.

        Readers of a run take these. `fields` are the others of this class.
        """
        models = derive_models(study, cells, num_layers)
        return cls(
            study=study,
            cells=tuple(cells),
            num_layers=num_layers,
            models=models,
            **fields,
        )


def read_run_file(path: Path) -> RunFile | None:
    """Return `run.json` of a folder; None where there is none, an error for another schema."""
    file = path / RUN_FILE
    if (text := _read(file)) is None:
        return None
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(file, error) from error
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{file}: written by another layerswap (schema version {version}, and this one reads "
            f"{SCHEMA_VERSION}); it is left as it is: use the version that wrote it, or run again "
            "in another folder (--out)"
        )
    head = stored_value(RunFile, text, str(file))
    tasks = {task for cell in head.cells for task in cell.record_keys}
    labels = [*(model.label for model in head.models), *(cell.label for cell in head.cells)]
    check_written_names(file, [*labels, *head.experts, *tasks])
    return head


def is_search(folder: Path) -> bool:
    """Return whether a folder holds a search."""
    return (folder / SEARCH_FILE).is_file()


def is_round(folder: Path) -> bool:
    """Return whether a run folder is a round of a search, by whose scores settings were chosen."""
    folder = folder.absolute()
    return folder.name != HELD_OUT and is_search(folder.parent)


def write_run_file(path: Path, head: RunFile) -> None:
    """Write `run.json`."""
    write_text(path / RUN_FILE, head.model_dump_json(indent=2) + "\n")


def find_record(path: Path, key: str) -> TaskRecord | None:
    """Return a record as `read_record` does; None, too, where its first line is damaged.

    Its items are not looked at. A run does that once at its start (`remove_damaged`).
    """
    try:
        return read_record(path, key)
    except LayerSwapError:
        return None


def read_record(path: Path, key: str) -> TaskRecord | None:
    """Return a record without its samples; None where there is none."""
    file = record_file(path, key)
    if (line := _read(file, first_line_only=True)) is None:
        return None
    return parse_record(line, file).model_copy(update={"path": file})


def parse_record(line: str, where: Path | str) -> TaskRecord:
    """Return the record of its first line; `where` names it in errors."""
    record = stored_value(TaskRecord, line, str(where))
    scores = record.evaluation.scores
    floors = (score.floor.name for score in scores if score.floor is not None)
    names = (name for score in scores for name in (score.task, score.metric, score.filter))
    check_written_names(where, [record.task, *names, *floors])
    return record


def write_record(path: Path, record: TaskRecord) -> None:
    """Write a record, with its samples in `evaluation`, whole or not at all; drop its failure."""
    samples = record.evaluation.samples
    reasons = zero_reasons(record.evaluation)
    lines = [
        sample.model_dump_json(exclude={"prompts", "choices", "responses"}, exclude_defaults=True)
        for sample in samples
    ]
    items = "".join(f"{line}\n" for line in lines)
    facts = {
        "items": len(samples),
        "items_sha256": hashlib.sha256(items.encode()).hexdigest(),
        "no_answers": reasons,
    }
    first = record_line(record.model_copy(update=facts))
    write_text(record_file(path, record.key), f"{first}\n{items}")
    _failure_file(path, record.key).unlink(missing_ok=True)


def record_line(record: TaskRecord) -> str:
    """Return a record as the first line of its file."""
    return stored_line(
        record.model_dump_json(exclude={"evaluation": {"samples"}}, exclude_defaults=True)
    )


def stored_line(text: str) -> str:
    """Return a JSON object with a checksum, for `stored_value`."""
    content = json.loads(text)
    content["checksum"] = checksum_of(content)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def unfinished_records(path: Path, cells: Iterable[Cell]) -> dict[str, str]:
    """Return key -> task of the records of cells that a run folder lacks, in their order.

    A cell is finished when it has none of them. A record counts if its first line is whole; see
    `find_record`.
    """
    tasks = {key: task for cell in cells for task, key in cell.record_keys.items()}
    return {key: task for key, task in tasks.items() if find_record(path, key) is None}


def remove_damaged(path: Path, keys: Iterable[str]) -> None:
    """Remove records that are not what was written, so that they are scored again; warn of each."""
    for key in keys:
        file = record_file(path, key)
        if file.exists() and not _is_whole(path, key):
            logger.warning("%s is damaged, so it is removed and scored again", file)
            file.unlink()


def _is_whole(path: Path, key: str) -> bool:
    place = record_file(path, key)
    try:
        with open_regular(place) as file:
            record = parse_record(file.readline(MOST_BYTES).decode(), place)
            content = hashlib.file_digest(file, "sha256")
    except (OSError, UnicodeDecodeError, LayerSwapError):
        return False
    return record.items_sha256 in ("", content.hexdigest())


def record_file(path: Path, key: str) -> Path:
    """Return where a record is."""
    return path / "records" / f"{key}.jsonl"


def write_failure(path: Path, failure: Failure) -> None:
    """Write why a task failed, in place of its record and of what was written before."""
    record_file(path, failure.key).unlink(missing_ok=True)
    write_text(_failure_file(path, failure.key), failure.model_dump_json(indent=2) + "\n")


def read_failure(path: Path, key: str) -> Failure | None:
    """Return why a task failed the last time; None where it did not."""
    file = _failure_file(path, key)
    return None if (text := _read(file)) is None else stored_value(Failure, text, str(file))


def _failure_file(path: Path, key: str) -> Path:
    return path / "failures" / f"{key}.json"


def _read(path: Path, *, first_line_only: bool = False) -> str | None:
    """Return the text of a file, or its first line; None where it is not there."""
    try:
        if not first_line_only:
            return read_regular(path).decode()
        with open_regular(path) as file:
            return file.readline(MOST_BYTES).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def stored_value(kind: type[_Model], text: str, where: str) -> _Model:
    """Return a value that a file of a run holds: the door for all of them.

    What is no item is text for readers, in which nothing may be that a terminal or a page obeys.
    A record has a checksum, but one of before it.
    """
    try:
        if kind is Sample:  # its texts are compared and counted, as they are
            return kind.model_validate_json(text)
        content = json.loads(text)
        checksum = content.pop("checksum", None) if isinstance(content, dict) else None
        if checksum is not None and checksum != checksum_of(content):
            raise ValueError("it is not what was written")
        return kind.model_validate_json(json.dumps(printable_parts(content)))
    except (ValueError, RecursionError) as error:
        raise damaged(where, error) from error


def check_written_names(where: Path | str, names: Iterable[str]) -> None:
    """Refuse names that a table cannot hold, or that a terminal would obey.

    Raises:
        LayerSwapError: naming the file.
    """
    try:
        for name in names:
            check_name(name)
    except ValueError as error:
        raise damaged(where, error) from error


def damaged(where: Path | str, why: Exception | str) -> LayerSwapError:
    """Return the error for a file of a run that is not what was written, with what to do."""
    advice = "remove it and run the study again: the other records stay"
    if Path(where).name == RUN_FILE:
        advice = "restore it, or choose another --out"
    reason = why if isinstance(why, str) else first_line(why)
    return LayerSwapError(f"{where} is damaged ({reason}); {advice}")


@contextmanager
def as_input_errors() -> Iterator[None]:
    """Raise faults in the files of a run, whose folder the user named, as `InputError`."""
    try:
        yield
    except LayerSwapError as error:
        raise InputError(error.message) from error
