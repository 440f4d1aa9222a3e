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
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field, model_validator

from ablations.machine.fingerprint import checksum_of, hash_file
from ablations.machine.whole_files import (
    MOST_BYTES,
    open_regular,
    read_regular,
    read_regular_lines,
    write_text,
)
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
from layerswap_method.errors import InputError, LayerSwapError, first_line, printable
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.kinds import place_kind
from layerswap_method.recipe.references import is_folder, no_such_folder

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 7
"""Version of the form of a run folder; `run.json` states it. Version 6 can be read, too."""

RUN_FILE = "run.json"
OBSERVATIONS_FILE = "observations.parquet"
RECORDS_FILE = "records.jsonl"

_MOST_ROWS = 20_000_000
"""Most rows of observations; the largest of the shipped runs has 282,000."""

logger = logging.getLogger(__name__)

_MOST_SIGNS = 2_000
"""Most characters of a name of a model, task, metric or filter: each row of a table has them."""

_SHOWN_FOLDERS = 8
"""Run folders that a message lists."""

_Model = TypeVar("_Model", bound=BaseModel)


class TaskRecord(Frozen):
    """The scores of one model on one task."""

    key: str
    """Hash of everything that can change the scores; names the file."""

    weights_key: str

    protocol: str
    """Hash of limit, seed, engine and its options."""

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
                    _check_names(self.path, [sample.task, sample.filter, *sample.values])
                    yield sample
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(self.path, error) from error
        if number != self.items + 1:
            raise _damaged(self.path, f"it has {number - 1} of {self.items} items")
        if self.items_sha256 not in ("", content.hexdigest()):
            raise _damaged(self.path, "an item is not what was written")


class CellRecord(Cell):
    """A cell with the records that it has."""

    tasks: tuple[TaskRecord, ...] = Field(min_length=1)
    """Its records in the order of the request; all of them only if the cell is finished."""

    @property
    def scores(self) -> tuple[TaskScore, ...]:
        """Every metric and filter of every task."""
        return tuple(score for task in self.tasks for score in task.evaluation.scores)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a reader of the scores; see `Evaluation.notes`."""
        return tuple(note for task in self.tasks for note in task.evaluation.notes)

    @property
    def backend(self) -> Backend:
        """The engine that really ran."""
        return self.tasks[0].evaluation.backend


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

    @model_validator(mode="before")
    @classmethod
    def _with_one_name(cls, content: Any) -> Any:
        """Call cells by their names, of which files of schema version 6 have two."""
        if not isinstance(content, dict) or content.get("schema_version") != 6:
            return content
        names = content.pop("names")
        for cell in content["cells"]:
            cell["label"] = names.get(cell["label"], cell["label"])
        for model in content["models"]:
            model["cells"] = [names.get(label, label) for label in model["cells"]]
        return {**content, "schema_version": SCHEMA_VERSION}

    @classmethod
    def of_cells(
        cls, study: Study, cells: Sequence[Cell], num_layers: int | None, **fields: Any
    ) -> RunFile:
        """Return the plan of a study, whose models are derived here and nowhere else.

        `fields` are the others of this class.
        """
        models = derive_models(study, cells, num_layers)
        return cls(
            study=study,
            cells=tuple(cells),
            num_layers=num_layers,
            models=models,
            **fields,
        )


class Run(Frozen):
    """A run folder as it was when read."""

    path: Path
    head: RunFile
    cells: tuple[CellRecord, ...]
    """The cells that have a record, in the order of the study."""

    failures: tuple[Failure, ...]
    """The first failure of each cell that lacks a record."""

    is_copy: bool = False
    """Whether this is a copy for readers: `records.jsonl` in the place of `records`."""

    @property
    def study(self) -> Study:
        """The study, as resolved."""
        return self.head.study

    @property
    def models(self) -> tuple[StudyModel, ...]:
        """The models of the study, baselines first."""
        return self.head.models

    @property
    def unfinished(self) -> tuple[Cell, ...]:
        """The cells of the study that lack a record, failed ones included."""
        keys = {key for cell in self.head.cells for key in cell.records.values()}
        keys -= {task.key for cell in self.cells for task in cell.tasks}
        return tuple(cell for cell in self.head.cells if not cell.is_finished(keys))


def load_run(path: Path, head: RunFile | None = None) -> Run:
    """Return the content of the run folder `path` for the plan `head`; None is its current one.

    Raises:
        InputError: where there is no run, or one of another schema version.
        LayerSwapError: for a record that is damaged, naming the file.
    """
    head = head or read_run_file(path)
    if head is None:
        fault = no_such_folder(path)
        if is_folder(path):
            fault = f"{path}: no {RUN_FILE} in it, so it is not a run folder"
            inside = sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))
            if inside:
                shown = ", ".join(map(str, inside[:_SHOWN_FOLDERS]))
                more = ", ..." if len(inside) > _SHOWN_FOLDERS else ""
                raise InputError(f"{fault}; give one inside it: {shown}{more}")
            fault += place_kind(path)
        raise InputError(f"{fault}; give the folder that layerswap run or evaluate wrote")
    for name in ("records", "failures"):
        if (path / name).is_symlink():  # RUN itself may be one
            raise InputError(
                f"{path / name}: is a link, and those inside a run folder are not followed; put "
                "the folder itself there, or make the whole run folder a link"
            )
    is_copy = holds_copy(path)
    records: dict[str, TaskRecord | None] = {}
    if is_copy:
        records.update(_copied_records(path / RECORDS_FILE))
    else:
        for key in (key for cell in head.cells for key in cell.records.values()):
            if key not in records:
                records[key] = read_record(path, key)
    cells, failures = [], []
    for cell in head.cells:
        keys = cell.records.values()
        tasks = [record for key in keys if (record := records.get(key)) is not None]
        if tasks:
            cells.append(CellRecord(**dict(cell), tasks=tuple(tasks)))
        missing = [key for key in keys if records.get(key) is None]
        failures_of_cell = (read_failure(path, key) for key in missing)
        failure = next((failure for failure in failures_of_cell if failure is not None), None)
        if failure is not None:
            failures.append(failure.model_copy(update={"label": cell.label}))
    return Run(path=path, head=head, cells=tuple(cells), failures=tuple(failures), is_copy=is_copy)


def holds_copy(path: Path) -> bool:
    """Return whether a run folder is a copy for readers: observations, and no `records`."""
    return not (path / "records").is_dir() and (path / OBSERVATIONS_FILE).is_file()


def check_observations(file: Path) -> None:
    """Check that observations may be read: a small file can hold any number of equal rows.

    Raises:
        OSError: where the file is none that `open_regular` opens.
        ValueError: where it holds too many.
    """
    import pyarrow.parquet

    with open_regular(file) as opened:
        rows = pyarrow.parquet.read_metadata(opened).num_rows
    if rows > _MOST_ROWS:
        raise ValueError(f"it holds {rows:,} rows, over {_MOST_ROWS:,}")


def written_observations(path: Path) -> pd.DataFrame:
    """Return the observations of a copy of a run.

    Raises:
        LayerSwapError: for names that no table can hold.
    """
    import pandas as pd

    frame = pd.read_parquet(path / OBSERVATIONS_FILE)
    for column in ("weights", "task", "metric", "filter"):
        _check_names(path / OBSERVATIONS_FILE, map(str, frame[column].unique()))
    return frame


def _copied_records(file: Path) -> dict[str, TaskRecord]:
    observations = file.with_name(OBSERVATIONS_FILE)
    try:
        check_observations(observations)
    except (OSError, ValueError) as error:
        raise _damaged(observations, error) from error
    if not file.exists():
        raise InputError(f"{file.parent}: has no {file.name}, which a copy of a run needs")
    records = dict[str, TaskRecord]()
    try:
        for number, line in read_regular_lines(file):
            if line.startswith(_OBSERVED_LINE):
                if json.loads(line)["observations"] != hash_file(observations):
                    raise _damaged(observations, f"it is not of the same moment as {file.name}")
                continue
            record = _read_record(line, f"{file}:{number}")
            records[record.key] = record
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
    return records


_OBSERVED_LINE = '{"observations":'
"""Begins the last line of `RECORDS_FILE`: the hash of the observations that belong to it."""


def copied_records(records: Iterable[TaskRecord], observations: bytes) -> str:
    """Return the content of `RECORDS_FILE`: the first line of every record, without its items."""
    lines = [_stored_line(record.model_copy(update={"items_sha256": ""})) for record in records]
    lines.append(f'{_OBSERVED_LINE}"{hashlib.sha256(observations).hexdigest()}"}}')
    return "".join(f"{line}\n" for line in lines)


def read_run_file(path: Path) -> RunFile | None:
    """Return `run.json` of a folder; None where there is none, an error for another schema."""
    file = path / RUN_FILE
    if (text := _read(file)) is None:
        return None
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, error) from error
    if version not in (6, SCHEMA_VERSION):
        raise InputError(
            f"{file}: written by another layerswap (schema version {version}, and this one reads "
            f"{SCHEMA_VERSION}); it is left as it is: use the version that wrote it, or run again "
            "in another folder (--out)"
        )
    head = stored_value(RunFile, text, str(file))
    tasks = {task for cell in head.cells for task in cell.records}
    labels = [*(model.label for model in head.models), *(cell.label for cell in head.cells)]
    _check_names(file, [*labels, *head.experts, *tasks])
    return head


def write_run_file(path: Path, head: RunFile) -> None:
    """Write `run.json`."""
    write_text(path / RUN_FILE, head.model_dump_json(indent=2) + "\n")


def find_record(path: Path, key: str) -> TaskRecord | None:
    """Return a record as `read_record` does; a damaged one is as good as none."""
    try:
        return read_record(path, key)
    except LayerSwapError:
        return None


def read_record(path: Path, key: str) -> TaskRecord | None:
    """Return a record without its samples; None where there is none."""
    file = record_file(path, key)
    if (line := _read(file, first_line_only=True)) is None:
        return None
    return _read_record(line, file).model_copy(update={"path": file})


def _read_record(line: str, where: Path | str) -> TaskRecord:
    record = stored_value(TaskRecord, line, str(where))
    scores = record.evaluation.scores
    floors = (score.floor.name for score in scores if score.floor is not None)
    names = (name for score in scores for name in (score.task, score.metric, score.filter))
    _check_names(where, [record.task, *names, *floors])
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
    first = _stored_line(record.model_copy(update=facts))
    write_text(record_file(path, record.key), f"{first}\n{items}")
    _failure_file(path, record.key).unlink(missing_ok=True)


def _stored_line(record: TaskRecord) -> str:
    """Return a record without samples as a line of a file."""
    return stored_line(
        record.model_dump_json(exclude={"evaluation": {"samples"}}, exclude_defaults=True)
    )


def stored_line(text: str) -> str:
    """Return a JSON object with a checksum, for `stored_value`."""
    content = json.loads(text)
    content["checksum"] = checksum_of(content)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def missing(path: Path, cells: Iterable[Cell]) -> dict[str, str]:
    """Return key -> task of the records of cells that a run folder lacks, in their order.

    Here it is decided what is finished: a cell is, where none of its keys is missing. A damaged
    record is as good as none.
    """
    tasks = {key: task for cell in cells for task, key in cell.records.items()}
    return {key: task for key, task in tasks.items() if find_record(path, key) is None}


def remove_damaged(path: Path, keys: Iterable[str]) -> None:
    """Remove records that are not what was written, so that they are scored again; warn of each."""
    for key in keys:
        file = record_file(path, key)
        if file.exists() and not _is_whole(path, key):
            logger.warning("%s is damaged, so it is removed and scored again", file)
            file.unlink()


def _is_whole(path: Path, key: str) -> bool:
    try:
        record = read_record(path, key)
        with open_regular(record_file(path, key)) as file:
            file.readline()
            content = hashlib.sha256()
            for line in file:
                content.update(line)
    except (OSError, LayerSwapError):
        return False
    return record is not None and record.items_sha256 in ("", content.hexdigest())


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
        raise _damaged(path, error) from error


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
        return kind.model_validate_json(json.dumps(_cleaned(content)))
    except (ValueError, RecursionError) as error:
        raise _damaged(where, error) from error


def _check_names(where: Path | str, names: Iterable[str]) -> None:
    """Refuse names that a table cannot hold, or that a terminal would obey.

    Raises:
        LayerSwapError: naming the file.
    """
    for name in names:
        if len(name) > _MOST_SIGNS:
            raise _damaged(where, f"it has a name of {len(name):,} characters: {name[:40]}...")
        if printable(name) != name:
            raise _damaged(where, f"it has a name with control characters: {printable(name)}")


def _cleaned(value: Any) -> Any:
    """Return JSON with all of its texts, names of keys among them, as `printable` shows them."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _cleaned(part) for name, part in value.items()}
    return [_cleaned(part) for part in value] if isinstance(value, list) else value


def _damaged(where: Path | str, why: Exception | str) -> LayerSwapError:
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
