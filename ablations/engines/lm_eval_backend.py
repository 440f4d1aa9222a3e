"""The one place that imports lm-eval: runs tasks on a model and reads the results.

Knows lm-eval's Python API and its result format. Does not know where a model came from, and
starts vLLM only through `vllm_engine`.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablations.engines import vllm_engine
from ablations.engines.backends import backend_versions, resolve_backend
from ablations.engines.keeping import keeping
from ablations.engines.options import EngineOptions
from ablations.engines.task_choice import Choice, choose_tasks
from ablations.engines.watched import WatchedHf, WatchedVllm
from ablations.machine.interrupts import heeding_interrupts
from ablations.machine.progress import Step, tell
from ablations.models.context import Checkpoint, check_context
from ablations.sandbox.programs import code_isolation, find_isolation
from ablations.scoring import outcomes
from ablations.scoring.observed import task_notes
from ablations.scoring.read_lm_eval import read_samples, read_scores, what_was_asked
from ablations.scoring.records import Backend, Evaluation, EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError, LayerSwapError, nearest

logger = logging.getLogger(__name__)

_CHATTY = (
    *("sacrebleu", "lm_eval.api.task", "lm_eval.utils", "lm_eval.models.utils"),
    *("lm_eval.models.huggingface", "lm_eval.models.vllm_causallms"),
    "transformers.tokenization_utils_base",
)
"""Loggers whose warnings nobody can act on."""

_IF_MOVED = (
    "; if {} was moved, correct the paths in its task files (for pocket experts, run `layerswap "
    "pocket build` again: it trains nothing)"
)


@contextmanager
def loaded(
    model: Checkpoint,
    backend: Backend,
    options: EngineOptions,
    seed: int = 0,
    adapter: Path | None = None,
) -> Iterator[Any]:
    """Give lm-eval's model object of a checkpoint; end its engine afterwards.

    Raises:
        InputError: as `start_model`.
    """
    lm = start_model(str(model), backend, options, seed, adapter=adapter)
    try:
        yield lm
    finally:
        if backend == "vllm":
            vllm_engine.shut_down(lm.model)


def start_model(
    model: str,
    backend: Backend,
    options: EngineOptions,
    seed: int = 0,
    engine_arguments: Mapping[str, Any] | None = None,
    adapter: Path | None = None,
) -> Any:
    """Return lm-eval's model object of a checkpoint: loaded, its engine started.

    Args:
        model: a folder, or the hub id of a model in the local cache.
        backend: the engine.
        options: how the model is run.
        seed: of vLLM's sampling.
        engine_arguments: more arguments for vLLM.
        adapter: an adapter of peft's, of any kind, that runs beside the weights; HF only.

    Raises:
        InputError: when the model or the backend is not what it should be.
        LayerSwapError: when the engine fails to start.
    """
    from safetensors import SafetensorError

    resolve_backend(backend, beside=adapter)
    tell(Step(f"starting {backend} on {model}"))
    try:
        with _quietly():
            check_context(model, options.max_model_len)
            if backend == "vllm":
                return _start_vllm(model, options, seed, engine_arguments or {})
            return _start_hf(model, options, adapter)
    except LayerSwapError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if backend == "vllm":
            vllm_engine.clean_up()
        kind = LayerSwapError if isinstance(error, RuntimeError) else InputError
        raise kind(f"{model}: {backend} cannot load it: {error}") from error


def run_tasks(
    lm: Any,
    request: EvaluationRequest,
    *,
    model: str,
    backend: Backend,
    answers: Path | None = None,
) -> Evaluation:
    """Run the tasks on a loaded lm-eval model object and return scores and records.

    The seam for an engine that lives longer than one model: hand the same `lm` in again after
    changing its weights and resetting its prefix cache. Prompts go out as the task writes them:
    no chat template is applied, and `ablations.engines.donor` counts on that.

    Args:
        lm: an ``lm_eval.api.model.LM``.
        request: what to ask.
        model: name of the model in the result.
        backend: name of the engine in the result.
        answers: file to keep what is generated in as it arrives; what is in it is not generated
            again. It belongs to this model and this request. None keeps nothing.

    Raises:
        InputError: for unknown tasks, or a task whose data cannot be read.
    """
    from lm_eval import simple_evaluate

    tasks, skipped = load_tasks(request)
    tell(Step(f"{', '.join(request.tasks)}: preparing prompts"))
    started = time.monotonic()
    outcomes.forget(lm)
    raw: Any = {"samples": {}, "configs": {}}
    before = 0
    if tasks:
        held = code_isolation(request.code_isolation)
        with _quietly(), held, keeping(lm, answers) as kept:
            raw = simple_evaluate(
                model=lm,
                tasks=tasks,
                task_manager=_task_manager(request),
                confirm_run_unsafe_code=request.allow_code_execution,
                limit=request.limit,
                log_samples=True,
                bootstrap_iters=0,
                random_seed=request.seed,
                numpy_random_seed=request.seed,
                torch_random_seed=request.seed,
                fewshot_random_seed=request.seed,
            )
        before = 0 if kept is None else kept.taken
        if raw is None:
            raise LayerSwapError("lm-eval returned no results: run this on the first rank only")
    went = outcomes.outcomes(lm)
    samples = read_samples(raw, went)
    return Evaluation(
        model=model,
        backend=backend,
        scores=read_scores(raw, samples, seed=request.seed, level=request.level),
        samples=samples,
        task_versions={name: str(raw["versions"].get(name) or "") for name in raw["samples"]},
        num_fewshot={name: int(raw["n-shot"][name]) for name in raw["samples"]},
        versions=backend_versions(backend),
        elapsed_s=time.monotonic() - started,
        answers_before=before,
        asked=what_was_asked(raw["samples"], getattr(lm, "chats", {})),
        skipped=skipped,
        notes=(*outcomes.notes_on(went), *task_notes(raw["configs"], request.code_isolation)),
    )


def load_tasks(request: EvaluationRequest) -> tuple[list[Any], dict[str, str]]:
    """Return lm-eval's task objects of the request with their data, and what is skipped.

    Raises:
        InputError: for unknown tasks, a task whose data cannot be read, or one that executes code
            on a machine that can hold none.
    """
    manager = _task_manager(request)
    choice = _choose(manager, request)
    if choice.runs_code:
        # Where there is none, that is said before the model has answered for an hour.
        find_isolation(request.code_isolation)
    tasks: list[Any] = []
    for name in choice.asked:
        tell(Step(f"reading the data of {name}"))
        try:
            with _quietly():
                loaded = manager.load([name])
        except LayerSwapError:
            raise
        except (OSError, ValueError, KeyError, ImportError) as error:
            told = f"task {name}: its data cannot be read: {error}"
            if isinstance(error, FileNotFoundError) and request.include_path != SHIPPED_TASKS:
                told += _IF_MOVED.format(request.include_path)
            raise InputError(told) from error
        groups = loaded.get("groups", {})
        tasks += [groups[name]] if name in groups else loaded["tasks"].values()
    return tasks, choice.skipped


def build_requests(request: EvaluationRequest, most: int) -> tuple[int, list[Any]]:
    """Return how many items a task has, and what lm-eval would ask of the first `most` of them.

    Args:
        request: of a single task.
        most: items whose requests are built.

    Raises:
        InputError: as `load_tasks`, or for a group that changes its members.
    """
    (task,), _ = load_tasks(request)
    if not hasattr(task, "build_all_requests"):
        raise InputError(f"{request.tasks[0]} is a group with settings of its own")
    items = min(len(task.eval_docs), request.limit or sys.maxsize)
    with _quietly():
        task.set_fewshot_seed(seed=request.seed)
        task.build_all_requests(limit=min(items, most))
    return items, list(task.instances)


def check_data(requests: Iterable[EvaluationRequest]) -> None:
    """Load the data of every request once: what is missing is said before a model is loaded.

    Raises:
        InputError: with every problem.
    """
    problems: dict[str, None] = {}
    for request in requests:
        try:
            load_tasks(request)
        except LayerSwapError as error:
            problems[error.message] = None
    if len(problems) == 1:
        raise InputError(*problems)
    if problems:
        raise InputError.from_problems("data of the tasks", list(problems))


def check_tasks(request: EvaluationRequest) -> Choice:
    """Return what would be asked and what skipped, before any model or data is loaded.

    Raises:
        InputError: naming every unknown task with the nearest known one.
    """
    return _choose(_task_manager(request), request)


def _choose(manager: Any, request: EvaluationRequest) -> Choice:
    return choose_tasks(
        manager.task_index, request.tasks, allow_code_execution=request.allow_code_execution
    )


def _task_manager(request: EvaluationRequest) -> Any:
    tell(Step("reading the task files"))
    with heeding_interrupts():
        from lm_eval.tasks import TaskManager

    if not request.include_path.is_dir():
        raise InputError(f"{request.include_path}: no such folder of lm-eval task files")
    if request.data_dir is not None and not request.data_dir.is_dir():
        raise InputError(f"{request.data_dir}: no such folder of task data")
    # Tasks hand their metadata to the function that loads their data; see ablations/tasks.
    metadata = None if request.data_dir is None else {"data_dir": str(request.data_dir.absolute())}
    folders = [str(folder) for folder in reversed(request.folders)]  # the last one wins
    manager = TaskManager(include_path=folders, include_defaults=False, metadata=metadata)
    known = manager.all_tasks
    if not known:
        raise InputError(f"{request.include_path}: has no lm-eval task file (*.yaml)")
    problems = [
        f"unknown task {task!r}{nearest(task, known)}"
        for task in request.tasks
        if task not in known
    ]
    if problems:
        problems[-1] += f"; known are {', '.join(known)}"
        raise InputError.from_problems(str(request.include_path), problems)
    return manager


def _start_hf(model: str, options: EngineOptions, adapter: Path | None) -> Any:
    """Return lm-eval's transformers model, with an adapter of peft's on it if there is one."""
    import torch
    from lm_eval.models.huggingface import HFLM

    class Model(WatchedHf, HFLM):  # type: ignore[misc]
        """lm-eval's, and tells how each request went."""

    return Model(
        pretrained=model,
        peft=None if adapter is None else str(adapter),
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=options.dtype,
        batch_size=options.batch_size,
        max_length=options.max_model_len,
        trust_remote_code=False,
    )


def _start_vllm(
    model: str, options: EngineOptions, seed: int, engine_arguments: Mapping[str, Any]
) -> Any:
    """Return lm-eval's vLLM model with a fresh engine.

    All requests are handed over at once (vLLM batches by itself, up to ``max_num_seqs``); with
    lm-eval's ``batch_size="auto"`` it would be the same, but with vLLM's progress bar, which
    divides by zero when bars are switched off.
    """
    vllm_engine.prepare(options)
    from lm_eval.models.vllm_causallms import VLLM
    from transformers import AutoConfig

    class Model(WatchedVllm, VLLM):  # type: ignore[misc]
        """lm-eval's, and tells how each request went."""

    stored = getattr(AutoConfig.from_pretrained(model), "dtype", None)
    stored_dtype = None if stored is None else str(stored).removeprefix("torch.")
    arguments = vllm_engine.engine_arguments(options, seed, stored_dtype)
    return Model(pretrained=model, batch_size=sys.maxsize, **arguments, **engine_arguments)


@contextmanager
def _quietly() -> Iterator[None]:
    """Switch off a dozen progress bars per model, and what is said that nobody can act on.

    lm-eval has no option for its bars, which like those of transformers, datasets and vLLM are
    made with tqdm. It also asks git about the working directory, whose complaint reaches the
    terminal where that is no repository; sacrebleu warns of tokenised text at every call, and
    lm-eval of every prompt that is cut (see `outcomes.notes_on`) and every local data set.
    All is put back afterwards.
    """
    import lm_eval.evaluator
    from tqdm import tqdm

    make_bar, ask_git = tqdm.__init__, lm_eval.evaluator.get_git_commit_hash
    levels = {logger: logger.level for logger in map(logging.getLogger, _CHATTY)}

    def make_no_bar(bar: Any, *arguments: Any, **options: Any) -> None:
        make_bar(bar, *arguments, **(options | {"disable": True}))

    tqdm.__init__ = make_no_bar  # type: ignore[assignment]
    lm_eval.evaluator.get_git_commit_hash = lambda: None
    for each in levels:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"(vllm|torch)\b")
            yield
    finally:
        tqdm.__init__ = make_bar  # type: ignore[method-assign]
        lm_eval.evaluator.get_git_commit_hash = ask_git
        for each, level in levels.items():
            each.setLevel(level)
