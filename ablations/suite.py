"""The paper's benchmarks on one model: which tasks, what is kept, what is not asked again.

Every task of the suite has a folder of its own below the output folder, written when it is done,
so that a run that was stopped goes on where it was, and one more language asks only that.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

import layerswap_method
from ablations.atomic import check_place, told_if_unwritable, write_text
from ablations.evaluation.backends import backend_versions, describe_backend, resolve_backend
from ablations.evaluation.catalog import Task, choose, list_tasks
from ablations.evaluation.choice import NEEDS_CODE_EXECUTION
from ablations.evaluation.evaluator import BackendChoice, EngineOptions
from ablations.evaluation.fingerprint import (
    fingerprint_checkpoint,
    fingerprint_code,
    fingerprint_files,
    fingerprint_folder,
    fingerprint_of,
)
from ablations.evaluation.lm_eval_backend import check_data, loaded, locate, run_tasks
from ablations.evaluation.scores import (
    SHIPPED_TASKS,
    Backend,
    Evaluation,
    EvaluationRequest,
    Frozen,
    Seed,
)
from ablations.evaluation.store import read_evaluation, write_evaluation
from ablations.evaluation.table5 import render_table5
from ablations.study.experts import find_expert
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
RESULTS = "results.json"
DEFAULT_OUT = Path("runs/evaluate")


class SuiteRequest(Frozen):
    """What to ask, and how."""

    languages: tuple[str, ...] = ()
    """Language codes; none asks all that the suite has."""

    benchmarks: tuple[str, ...] = ()
    """Short names of benchmarks; none asks all."""

    data_dir: Path | None = None
    """Folder of local files in place of the hub."""

    limit: int | None = Field(default=None, ge=1)
    """Items per task, from the first; None asks all."""

    seed: Seed = 0
    """Of the bootstrap."""

    backend: BackendChoice = "auto"
    """What evaluates."""

    options: EngineOptions = EngineOptions()
    """How the model is run."""

    allow_code_execution: bool = False
    """Whether generated programs may be run."""

    def of(self, task: Task) -> EvaluationRequest:
        """Return the request for one task."""
        return EvaluationRequest(
            tasks=(task.name,),
            data_dir=self.data_dir,
            limit=self.limit,
            seed=self.seed,
            allow_code_execution=self.allow_code_execution,
        )


@dataclass(frozen=True)
class SuiteResult:
    """What a model scored."""

    model: str
    """As the user named it."""

    backend: Backend
    """What evaluated it."""

    tasks: tuple[Task, ...]
    """Every task that was chosen, in the order of Table 5."""

    evaluations: Mapping[str, Evaluation]
    """Task name -> its evaluation."""

    skipped: Mapping[str, str]
    """Task name -> why it was not asked."""

    out: Path
    """Folder of the records."""

    def report(self) -> str:
        """Return the table in the layout of the paper's Table 5, notes, and where records are."""
        name = Path(self.model).name if Path(self.model).is_dir() else self.model
        table = render_table5(name, self.tasks, self.evaluations, self.skipped)
        if not self.evaluations:
            return f"{table}\n\nNothing was evaluated. What was skipped: {self.out / RESULTS}"
        return (
            f"{table}\n\nEvaluated by lm-eval on {describe_backend(self.backend)}.\n"
            f"Scores: {self.out / RESULTS}; one record per item: {self.out}/TASK/samples_*.jsonl"
        )


def evaluate_model(model: str, request: SuiteRequest, out: Path | None = None) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs are not asked again.

    Args:
        model: a checkpoint folder, or a hub id (``org/name`` or ``org/name@revision``).
        request: what to ask.
        out: folder for the records; None for ``runs/evaluate/`` and the model's name.

    Raises:
        InputError: for unknown languages or benchmarks, data that is missing (all of it in one
            message, before a model is loaded), a model that is not there, a missing backend, or a
            folder that cannot be written.
        LayerSwapError: when writing fails later on.
    """
    chosen = choose(list_tasks(), request.languages, request.benchmarks)
    folder = _find_model(model)
    backend = resolve_backend(request.backend)
    out = DEFAULT_OUT / model.strip("/.").replace("/", "--") if out is None else out
    check_place(out / RESULTS)
    skipped = {
        task.name: NEEDS_CODE_EXECUTION
        for task in chosen
        if task.executes_code and not request.allow_code_execution
    }
    fingerprints = dict(_fingerprints(chosen, skipped, folder, backend, request))
    found: dict[str, Evaluation] = {}
    for name, fingerprint in fingerprints.items():
        known = read_evaluation(out / name, fingerprint=fingerprint)
        if known is not None:
            found[name] = known.model_copy(update={"model": model})
            logger.info("%s: evaluated before, nothing has changed", name)
    missing = [task for task in chosen if task.name in fingerprints and task.name not in found]
    check_data(request.of(task) for task in missing)
    with told_if_unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
    if missing:
        with loaded(folder, backend, request.options, request.seed) as engine:
            for task in missing:
                started = time.monotonic()
                name = task.name
                found[name] = run_tasks(engine, request.of(task), model=model, backend=backend)
                with told_if_unwritable(out / name):
                    write_evaluation(out / name, found[name], fingerprint=fingerprints[name])
                logger.info("%s: evaluated in %.1f s", name, time.monotonic() - started)
    ordered = {task.name: found[task.name] for task in chosen if task.name in found}
    result = SuiteResult(model, backend, chosen, ordered, skipped, out)
    _write_results(result, request)
    return result


def _find_model(model: str) -> Path:
    """Return the folder of a model; fetches one that the hub has."""
    if "+" in model and not Path(model).is_dir():
        raise InputError(
            f"{model}: a base with an adapter; merge it first, or evaluate it in a study "
            "(layerswap run takes adapters)"
        )
    folder = Path(locate(model))
    if folder.is_dir():
        return folder
    try:
        return find_expert(model, {model: model}, download=True).folder
    except InputError as error:
        # It is no expert of a study here.
        raise InputError(error.message.removeprefix(f"expert {model!r}: ")) from error


def _fingerprints(
    tasks: Sequence[Task],
    skipped: Mapping[str, str],
    folder: Path,
    backend: Backend,
    request: SuiteRequest,
) -> Iterator[tuple[str, str]]:
    """Yield task name and the hash of everything that can change its score."""
    shared = {
        "model": fingerprint_checkpoint(folder),
        "tasks": fingerprint_folder(SHIPPED_TASKS),
        "code": fingerprint_code(Path(__file__).parent / "evaluation"),
        "options": request.options.model_dump(mode="json"),
        "backend": backend,
        "versions": {"layerswap": layerswap_method.__version__, **backend_versions(backend)},
    }
    for task in tasks:
        if task.name not in skipped:
            asked = request.of(task).model_dump(mode="json", exclude={"include_path", "data_dir"})
            data = None if request.data_dir is None else _data_hash(request.data_dir, task)
            yield task.name, fingerprint_of(**shared, request=asked, data=data)


def _data_hash(folder: Path, task: Task) -> str:
    """Return a hash of the local files that a task can read: others may come and go."""
    return fingerprint_files(
        folder,
        {
            path
            for place in (folder / task.benchmark, folder)
            for code in task.configs
            for path in place.glob(f"{code}_*.jsonl")
        },
    )


def _write_results(result: SuiteResult, request: SuiteRequest) -> None:
    """Write every score of the chosen tasks to `results.json`."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "model": result.model,
        "backend": result.backend,
        "limit": request.limit,
        "data_dir": None if request.data_dir is None else str(request.data_dir),
        "skipped": dict(result.skipped),
        "tasks": {
            name: each.model_dump(mode="json", exclude={"samples", "model", "backend", "skipped"})
            for name, each in result.evaluations.items()
        },
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with told_if_unwritable(result.out / RESULTS):
        write_text(result.out / RESULTS, text)
