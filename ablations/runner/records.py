"""What a run leaves on disk, written whole and read back. Knows files; evaluates nothing.

RUN/run.json               the study as resolved, its question, the planned cells in order
RUN/cells/KEY/cell.json    what the cell is: values, experts, layer plan, engine, timing, provenance
RUN/cells/KEY/merge.yml    the mergekit recipe that makes the same weights
RUN/cells/KEY/scores.json  every metric and filter of every task
RUN/cells/KEY/samples.jsonl  one record per task, filter and item
RUN/failures/KEY.json      why a cell failed the last time

The folders are the index. A cell's folder is written beside its place and renamed, so it is whole
or absent. Records of an older protocol keep other keys; `load_run` reads the current one's only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ablations.machine.json_lines import read_lines
from ablations.machine.whole_files import replaced_folder, write_text
from ablations.scoring.records import Backend, Sample, TaskScore
from ablations.study.schema import Kind, Study, Value
from layerswap_method.algorithm.plan import LayerPlan, Source
from layerswap_method.errors import InputError, LayerSwapError, first_line
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.references import is_folder, no_such_folder
from layerswap_method.recipe.strict_yaml import read_yaml

SCHEMA_VERSION = 1
"""Of everything below RUN. Older ones are refused by name until there is one to convert."""

RUN_FILE = "run.json"
_SCORES = TypeAdapter(tuple[TaskScore, ...])
_Model = TypeVar("_Model", bound=BaseModel)


class CellHead(Frozen):
    """What a cell is, without its scores: the content of ``cell.json``."""

    schema_version: int = SCHEMA_VERSION
    """Of the record."""

    key: str
    """Hash of everything that can change a score, and of the cell's place in the study."""

    weights_key: str
    """Hash of the weights: equal where two cells are one model."""

    score_key: str
    """Hash of weights and protocol: cells where it is equal were evaluated once."""

    label: str
    """The cell in words, unique in its study."""

    values: dict[str, Value]
    """What is varied, as the study gives it (before scaling to the model's depth)."""

    experts: dict[str, str]
    """Role (``task``, ``language``, ``base``) -> name of the expert."""

    language: str | None = None
    """Code of the language expert's language, where the study names one."""

    kind: Kind
    """The study's recipe, or a baseline."""

    plan: tuple[Source, ...] | None
    """Source of every layer, embedding side first; None where no layer is swapped."""

    backend: Backend
    """The engine that really ran."""

    timing_s: dict[str, float]
    """Wall time in seconds: ``total``, and what there was of ``merge`` (by mergekit), ``start`` (of
    an engine), ``load`` (weights into the live engine) and ``evaluate``."""

    provenance: dict[str, Any]
    """Versions, fingerprints, how the weights got into the engine, when and where."""

    skipped: dict[str, str] = Field(default_factory=dict)
    """Task of the request that was not asked -> why."""

    notes: tuple[str, ...] = ()
    """What a reader of the scores must know; see `Evaluation.notes`."""


class CellRecord(CellHead):
    """A finished cell."""

    folder: Path
    """Where its files are."""

    scores: tuple[TaskScore, ...]
    """Every metric and filter of every task."""

    @property
    def layer_plan(self) -> LayerPlan | None:
        """The plan, to draw or describe."""
        return None if self.plan is None else LayerPlan(self.plan)

    @property
    def merge(self) -> dict[str, Any]:
        """The mergekit recipe that makes the same weights."""
        return dict(read_yaml(self.folder / "merge.yml"))

    def samples(self) -> Iterator[Sample]:
        """Yield the records of all items, as they were asked.

        Raises:
            LayerSwapError: at a line that is damaged.
        """
        path = self.folder / "samples.jsonl"
        for number, line in read_lines(path):
            yield _validated(Sample, line, f"{path}:{number}")


class Failure(Frozen):
    """Why a cell failed the last time it was tried."""

    schema_version: int = SCHEMA_VERSION
    """Of the record."""

    key: str
    """The cell."""

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


class PlannedCell(Frozen):
    """A cell of the current plan, in the order of the study."""

    key: str
    """Names its folder."""

    label: str
    """In words."""


class RunFile(Frozen):
    """The content of ``run.json``."""

    schema_version: int = SCHEMA_VERSION
    """Of everything in the folder."""

    study: Study
    """The study, with `experts file` values written into it."""

    question: str
    """The study's question."""

    experts: dict[str, str]
    """Expert name -> where it was found (folder, or ``base+adapter``)."""

    cells: tuple[PlannedCell, ...]
    """Every cell of the study, in order; not only the finished ones."""

    num_layers: int | None
    """Decoder layers of the model."""

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
    """The finished cells, in the order of the study."""

    failures: tuple[Failure, ...]
    """The failed ones, in the order of the study."""

    @property
    def study(self) -> Study:
        """The study, as resolved."""
        return self.head.study

    @property
    def unfinished(self) -> tuple[PlannedCell, ...]:
        """The planned cells without a record, failed ones included."""
        done = {cell.key for cell in self.cells}
        return tuple(cell for cell in self.head.cells if cell.key not in done)


def load_run(path: Path) -> Run:
    """Return what the run folder `path` holds of its current plan.

    Raises:
        InputError: where there is no run, or one of another schema version.
        LayerSwapError: for a record that is damaged, naming the file.
    """
    head = read_run_file(path)
    if head is None:
        if not is_folder(path):
            raise InputError(f"{no_such_folder(path)}; give the folder that layerswap run wrote")
        below = sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))
        hint = f"; did you mean {below[0]}?" if below else "; layerswap run makes one"
        raise InputError(f"{path}: no {RUN_FILE} in it, so it is no run{hint}")
    keys = [cell.key for cell in head.cells]
    records = (read_cell(path, key) for key in keys)
    cells = tuple(record for record in records if record is not None)
    done = {cell.key for cell in cells}
    failures = (read_failure(path, key) for key in keys if key not in done)
    return Run(
        path=path, head=head, cells=cells, failures=tuple(f for f in failures if f is not None)
    )


def read_run_file(path: Path) -> RunFile | None:
    """Return `run.json` of the folder `path`; None where there is none."""
    return _read(RunFile, path / RUN_FILE)


def write_run_file(path: Path, head: RunFile) -> None:
    """Write `run.json`."""
    write_text(path / RUN_FILE, head.model_dump_json(indent=2) + "\n")


def cell_folder(path: Path, key: str) -> Path:
    """Return the folder of a cell's record, there or not."""
    return path / "cells" / key


def is_finished(path: Path, key: str) -> bool:
    """Return whether the cell has a record. Reads one directory entry."""
    return (cell_folder(path, key) / "cell.json").is_file()


def write_cell(
    path: Path,
    head: CellHead,
    merge: dict[str, Any],
    scores: Iterable[TaskScore],
    samples: Iterable[Sample],
) -> None:
    """Write a finished cell, whole or not at all, and drop its failure."""
    folder = cell_folder(path, head.key)
    with replaced_folder(folder) as fresh:
        lines = [sample.model_dump_json() + "\n" for sample in samples]
        (fresh / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
        dumped = [score.model_dump(mode="json") for score in scores]
        text = json.dumps(dumped, indent=2, ensure_ascii=False) + "\n"
        (fresh / "scores.json").write_text(text, encoding="utf-8")
        text = yaml.safe_dump(merge, sort_keys=False, allow_unicode=True)
        (fresh / "merge.yml").write_text(text, encoding="utf-8")
        text = head.model_dump_json(indent=2) + "\n"
        (fresh / "cell.json").write_text(text, encoding="utf-8")
    failure_path(path, head.key).unlink(missing_ok=True)


def read_cell(path: Path, key: str) -> CellRecord | None:
    """Return the record of a cell; None where it is not finished."""
    folder = cell_folder(path, key)
    head = _read(CellHead, folder / "cell.json")
    if head is None:
        return None
    scores = folder / "scores.json"
    try:
        read = _SCORES.validate_json(scores.read_bytes())
    except (OSError, ValidationError) as error:
        raise _damaged(scores, error) from error
    return CellRecord(**dict(head), folder=folder, scores=read)


def failure_path(path: Path, key: str) -> Path:
    """Return the file of a cell's failure, there or not."""
    return path / "failures" / f"{key}.json"


def write_failure(path: Path, failure: Failure) -> None:
    """Write why a cell failed, in place of what was written before."""
    write_text(failure_path(path, failure.key), failure.model_dump_json(indent=2) + "\n")


def read_failure(path: Path, key: str) -> Failure | None:
    """Return why a cell failed the last time; None where it did not."""
    return _read(Failure, failure_path(path, key))


def partial_names(path: Path) -> list[str]:
    """Return names of what is half written, ``.KEY.*``: by a writer that was killed, or is not."""
    return [
        left.name
        for pattern in ("cells/.*.partial", "failures/.*.json.*")
        for left in path.glob(pattern)
    ]


def remove_partial(path: Path, key: str) -> None:
    """Remove what writers of this cell that were killed left. Call while holding the cell."""
    for left in (path / "cells").glob(f".{key}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)
    for left in (path / "failures").glob(f".{key}.json.*"):
        left.unlink(missing_ok=True)


def _read(kind: type[_Model], path: Path) -> _Model | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    if version != SCHEMA_VERSION:
        age = "older" if isinstance(version, int) and version < SCHEMA_VERSION else "newer"
        raise InputError(
            f"{path}: schema version {version}, {age} than the {SCHEMA_VERSION} that this version "
            "of layerswap reads; use the version that wrote it, or another --out"
        )
    return _validated(kind, text, str(path))


def _validated(kind: type[_Model], text: str, where: str) -> _Model:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise _damaged(where, error) from error


def _damaged(where: Path | str, error: Exception) -> LayerSwapError:
    told = f"{where} is damaged ({first_line(error)})"
    if Path(where).name == RUN_FILE:
        return LayerSwapError(f"{told}; restore it, or choose another --out")
    return LayerSwapError(
        f"{told}; remove its folder and run the study again: the other cells are kept"
    )
