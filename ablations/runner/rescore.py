"""`layerswap rescore` as a function: today's filters and metrics on the answers of a run.

A record is scored again where its task's file or `SCORING_VERSION` has changed since, and written
beside the old one under the key that `layerswap run` would look for, so that a run goes on with
the new scores. Loads no model and no expert.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ablations.engines import lm_eval_index
from ablations.engines.backends import backend_versions
from ablations.machine.locks import try_claim
from ablations.machine.progress import counted
from ablations.runner import records
from ablations.runner.results import write_results
from ablations.runner.versioned_files import RUN_FILE
from ablations.runner.worker import LOCKS, now
from ablations.sandbox import Isolation
from ablations.scoring import SCORING_VERSION
from ablations.scoring.records import EvaluationRequest
from ablations.study.identity import score_key
from ablations.tasks.catalog import SHIPPED_TASKS, list_tasks
from ablations.tasks.contents import TaskContents
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.recipe.strict_yaml import read_yaml

logger = logging.getLogger(__name__)

_ONLY_SCORE = ("lm_eval", "sacrebleu", "py3langid")
"""Packages whose version of today counts; the others made the answers."""


@dataclass
class Rescored:
    """What became of the records of a run."""

    path: Path
    """The run folder."""

    again: list[str] = field(default_factory=list)
    """Tasks of cells that were scored again, in words."""

    same: int = 0
    """Records whose filters and metrics are those of today."""

    failed: dict[str, str] = field(default_factory=dict)
    """Task of a cell -> why it cannot be scored again."""

    def report(self) -> str:
        """Return what was done."""
        parts = [f"{len(self.again)} scored again", f"{self.same} unchanged"]
        parts += [f"{len(self.failed)} cannot be scored again"] if self.failed else []
        lines = [f"{self.path}: {', '.join(parts)}"]
        lines += [f"  {label}: {reason}" for label, reason in self.failed.items()]
        if self.again:
            lines.append(
                "The old records stay beside the new ones. What became of each score: layerswap "
                f"report {self.path}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class RescoreOptions:
    """What the command line allows: nothing of what a run folder names is run by itself."""

    data_dir: Path | None = None
    """Where the tasks' data is now, in place of where it was."""

    include_path: Path | None = None
    """Folder of task files, which are programs; None for the shipped tasks and lm-eval's."""

    isolation: Isolation | None = None
    """What holds stored programs that are run again; None leaves their records as they are."""


def rescore_run(path: Path, options: RescoreOptions | None = None) -> Rescored:
    """Score the stored answers of a run with the filters and metrics of today.

    Args:
        path: the run folder.
        options: what is allowed.

    Raises:
        InputError: where there is no run, or one that somebody is running.
    """
    run = records.load_run(path)
    claim = try_claim(path / LOCKS, RUN_FILE)
    if claim is None:
        raise InputError(f"{path}: another command writes this run now; wait until it has ended")
    try:
        found, renamed = Rescored(path), dict[str, str]()
        for label, record in counted("scoring again", [*_unique(run).items()], "records"):
            try:
                key = _rescore(path, record, options or RescoreOptions())
            except LayerSwapError as error:
                said = error.message.removeprefix("task ")  # the label has its name
                found.failed[label] = said.removeprefix(f"{record.task}: ")
                continue
            if key == record.key:
                found.same += 1
            else:
                renamed[record.key] = key
                found.again.append(label)
        if renamed:
            cells = tuple(
                cell.model_copy(
                    update={
                        "records": {
                            task: renamed.get(key, key) for task, key in cell.records.items()
                        }
                    }
                )
                for cell in run.head.cells
            )
            records.write_run_file(path, run.head.model_copy(update={"cells": cells}))
            write_results(path)
        return found
    finally:
        claim.release()


def _unique(run: records.Run) -> dict[str, records.TaskRecord]:
    """Return "cell: task" -> record, each record once."""
    found: dict[str, records.TaskRecord] = {}
    known = set[str]()
    for cell in run.cells:
        for record in cell.tasks:
            if record.key not in known:
                known.add(record.key)
                found[f"{cell.label}: {record.task}"] = record
    return found


def _rescore(path: Path, record: records.TaskRecord, options: RescoreOptions) -> str:
    """Write the record of today's scores, if it is another; return its key."""
    from ablations.engines.replay import replay

    request = EvaluationRequest.model_validate(record.provenance["request"])
    shipped = _is_shipped(record.task)
    folder = options.include_path or (SHIPPED_TASKS if shipped else request.include_path)
    request = request.model_copy(
        update={
            "include_path": folder,
            "data_dir": options.data_dir or request.data_dir,
            "allow_code_execution": options.isolation is not None,
            "code_isolation": options.isolation or "bwrap",
        }
    )
    contents = task_hash(record.task, request)
    old = record.evaluation
    versions = _versions(old.versions)
    key = score_key(record.weights_key, record.protocol, record.task, contents, versions)
    if key == record.key or records.is_finished(path, key):
        return key
    _check_allowed(record.task, folder, options)
    samples = tuple(record.samples())
    evaluation = replay(old, samples, request).model_copy(update={"versions": versions})
    first = record.provenance.get("rescored", {}).get("first", record.key)
    fresh = record.model_copy(
        update={
            "key": key,
            "evaluation": evaluation,
            "provenance": {
                **record.provenance,
                "request": request.model_dump(mode="json"),
                "scoring_version": SCORING_VERSION,
                "rescored": {
                    "from": record.key,
                    "first": first,
                    "scoring_version": record.provenance.get("scoring_version"),
                    "when": now(),
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                },
            },
        }
    )
    merge = dict(read_yaml(record.folder / "merge.yml"))
    records.write_record(path, fresh, merge)
    logger.info("  %s: %s scored again", record.label, record.task)
    return key


def task_hash(task: str, request: EvaluationRequest) -> str:
    """Return the hash of a task's content, as `layerswap run` computes it for its key."""
    contents = TaskContents(request.folders, request.data_dir, elsewhere=lm_eval_index.file_of)
    return contents.fingerprint(task)


def _is_shipped(task: str) -> bool:
    is_ours = any(each.name == task for each in list_tasks())
    return is_ours or lm_eval_index.file_of(task) is not None


def _check_allowed(task: str, folder: Path, options: RescoreOptions) -> None:
    """Check that the command line, and not the record, allows what scoring would run.

    Raises:
        InputError: for a task of a folder, or of generated programs, that is not allowed.
    """
    if options.include_path is None and not _is_shipped(task):
        raise InputError(
            f"it has changed since, and task files are programs: read those of {folder}, then add "
            f"--include-path {folder}"
        )
    if options.isolation is None and any(t.name == task and t.executes_code for t in list_tasks()):
        raise InputError("it runs what models wrote; add --allow-code-execution")


def _versions(of_record: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the packages: the record's, but today's of those that only score."""
    today = backend_versions("hf")
    made = {name: text for name, text in of_record.items() if name not in _ONLY_SCORE}
    return made | {name: today[name] for name in _ONLY_SCORE if name in today}
