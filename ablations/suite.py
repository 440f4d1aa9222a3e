"""The paper's benchmarks on one model: which tasks, what is kept, what is not asked again.

Every task of the suite has a folder of its own below the output folder, written when it is done,
so that a run that was stopped goes on where it was, and one more language asks only that. The
output folder is one model's under one protocol; its `results.json` grows from call to call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

import layerswap_method
from ablations.atomic import check_place, told_if_unwritable
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
from ablations.evaluation.results_file import FILE, Protocol, add_results, read_results
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
from ablations.study.experts import Expert, find_expert
from ablations.study.identity import code_fingerprint
from layerswap_method.errors import InputError, LayerSwapError

logger = logging.getLogger(__name__)

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
        """Return the request for one task, to be asked only if it `may_run`."""
        return EvaluationRequest(
            tasks=(task.name,),
            data_dir=self.data_dir,
            limit=self.limit,
            seed=self.seed,
            allow_code_execution=task.executes_code,
        )

    def may_run(self, task: Task) -> bool:
        """Return whether the task executes no code, or may."""
        return self.allow_code_execution or not task.executes_code


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

    earlier: tuple[str, ...]
    """Other tasks that the folder has scores of, from calls before."""

    out: Path
    """Folder of the records."""

    def report(self) -> str:
        """Return the table in the layout of the paper's Table 5, notes, and where records are."""
        parts = [self.model] if Path(self.model).is_dir() else self.model.split("+")
        name = "+".join(Path(part).name if Path(part).is_dir() else part for part in parts)
        table = render_table5(name, self.tasks, self.evaluations, self.skipped)
        if not self.evaluations:
            return f"{table}\n\nNothing was evaluated. What was skipped: {self.out / FILE}"
        many = "task" if len(self.earlier) == 1 else "tasks"
        earlier = f" (and those of {len(self.earlier)} {many} of earlier calls)"
        return (
            f"{table}\n\nEvaluated by lm-eval on {describe_backend(self.backend)}.\n"
            f"Scores{earlier if self.earlier else ''}: {self.out / FILE}; "
            f"one record per item: {self.out}/TASK/samples_*.jsonl"
        )


def evaluate_model(model: str, request: SuiteRequest, out: Path | None = None) -> SuiteResult:
    """Evaluate one model on the suite; finished tasks with unchanged inputs are not asked again.

    Args:
        model: a checkpoint folder, a hub id (``org/name`` or ``org/name@revision``), or either
            with a LoRA adapter: ``BASE+ADAPTER``.
        request: what to ask.
        out: folder for the records; None for ``runs/evaluate/`` and the model's name.

    Raises:
        InputError: for unknown languages or benchmarks, data that is missing (all of it in one
            message, before a model is loaded), a model that is not there, an adapter that cannot
            be streamed, a missing backend, a folder that cannot be written, or one that holds
            results of another model or protocol.
        LayerSwapError: when writing fails later on, or the engine cannot take the adapter.
    """
    suite = list_tasks()
    chosen = choose(suite, request.languages, request.benchmarks)
    expert = _find_model(model)
    backend = resolve_backend(request.backend)
    out = DEFAULT_OUT / model.strip("/.").replace("/", "--") if out is None else out
    check_place(out / FILE)
    folders = [expert.folder, *([expert.adapter] if expert.adapter is not None else [])]
    protocol = Protocol(
        model_fingerprint=fingerprint_of(parts=[fingerprint_checkpoint(each) for each in folders]),
        backend=backend,
        limit=request.limit,
        dtype=request.options.dtype,
        max_model_len=request.options.max_model_len,
    )
    read_results(out, model, protocol)
    fingerprints = dict(_fingerprints(chosen, expert, protocol, request))
    found: dict[str, Evaluation] = {}
    for name, fingerprint in fingerprints.items():
        known = read_evaluation(out / name, fingerprint=fingerprint)
        if known is not None:
            found[name] = known.model_copy(update={"model": model})
            logger.info("%s: evaluated before, nothing has changed", name)
    missing = [task for task in chosen if request.may_run(task) and task.name not in found]
    check_data(request.of(task) for task in missing)
    skipped = {
        task.name: NEEDS_CODE_EXECUTION
        for task in chosen
        if not request.may_run(task) and task.name not in found
    }

    def so_far() -> SuiteResult:
        ordered = {task.name: found[task.name] for task in chosen if task.name in found}
        earlier = add_results(
            out,
            model,
            protocol,
            evaluations=ordered,
            skipped=skipped,
            data_dir=request.data_dir,
            order=[task.name for task in suite],
        )
        return SuiteResult(model, backend, chosen, ordered, skipped, earlier, out)

    with told_if_unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
    if missing:
        with _engine(expert, model, backend, request) as ask:
            for task in missing:
                started = time.monotonic()
                name = task.name
                found[name] = ask(request.of(task)).model_copy(update={"model": model})
                with told_if_unwritable(out / name):
                    write_evaluation(out / name, found[name], fingerprint=fingerprints[name])
                so_far()
                logger.info("%s: evaluated in %.1f s", name, time.monotonic() - started)
    return so_far()


def _find_model(model: str) -> Expert:
    """Return a model, and its adapter if it has one; fetches what the hub has."""
    base, plus, _ = (model, "", "") if Path(model).is_dir() else model.partition("+")
    folder = Path(locate(base))
    if folder.is_dir() and not plus:
        return Expert(model, folder)
    try:
        return find_expert(model, {model: model}, download=True)
    except InputError as error:
        # It is no expert of a study here.
        raise InputError(error.message.removeprefix(f"expert {model!r}: ")) from error


@contextmanager
def _engine(
    expert: Expert, model: str, backend: Backend, request: SuiteRequest
) -> Iterator[Callable[[EvaluationRequest], Evaluation]]:
    """Give what asks the loaded model; end its engine afterwards.

    An adapter's change is added to the base in a live engine, as studies do it: no merged copy.
    """
    if expert.adapter is None:
        with loaded(expert.folder, backend, request.options, request.seed) as engine:
            yield lambda asked: run_tasks(engine, asked, model=model, backend=backend)
        return
    from ablations.live import SwapFailed, open_live
    from layerswap_method.streams import checkpoint_stream

    stream = checkpoint_stream(expert.folder, expert.adapter)
    live = open_live(expert.folder, backend, request.options)
    try:
        live.swap(stream)
        yield lambda asked: live.evaluate(stream, asked)
    except SwapFailed as error:
        raise LayerSwapError(
            f"{model}: the adapter cannot be added to its base in the engine: {error.message}; "
            "merge it first (peft: merge_and_unload, save_pretrained) and give the folder"
        ) from error
    finally:
        live.close()


def _fingerprints(
    tasks: Sequence[Task], expert: Expert, protocol: Protocol, request: SuiteRequest
) -> Iterator[tuple[str, str]]:
    """Yield task name and the hash of everything that can change its score."""
    evaluation = Path(__file__).parent / "evaluation"
    shared = {
        "model": protocol.model_fingerprint,
        "tasks": fingerprint_folder(SHIPPED_TASKS),
        "code": fingerprint_code(evaluation) if expert.adapter is None else code_fingerprint(),
        "options": request.options.model_dump(mode="json"),
        "backend": protocol.backend,
        "versions": {
            "layerswap": layerswap_method.__version__,
            **backend_versions(protocol.backend),
        },
    }
    for task in tasks:
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
