"""Starts engines, has lm-eval ask them tasks and reads the results."""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from ablations.engines import vllm_engine
from ablations.engines.answers import AnswerFile
from ablations.engines.backends import backend_versions
from ablations.engines.chat import chat_tokenizer, date_notes
from ablations.engines.options import EngineOptions
from ablations.engines.quiet import quietly
from ablations.engines.stored_answers_lm import LoadedModel, Requests, StoredAnswersLM
from ablations.engines.task_loading import generates, load_tasks
from ablations.machine.progress import Step, show_step
from ablations.models.load import refuse_code
from ablations.requests.resolve import ResolvedTasks
from ablations.scoring.evaluation import Backend, Evaluation, EvaluationRequest
from ablations.scoring.groups import by_items_of_groups, item_starts, with_groups
from ablations.scoring.observed import (
    Key,
    Outcome,
    empty_notes,
    notes_on,
    short_notes,
    task_notes,
    thinking_notes,
)
from ablations.scoring.scores import mean_scores, read_samples, scores_of_samples
from ablations.tasks.catalog import may_be_published
from layerswap_method.errors import InputError, LayerSwapError

logger = logging.getLogger(__name__)


def start_model(
    model: str | Path,
    backend: Backend,
    options: EngineOptions,
) -> LoadedModel:
    """Return an engine with a checkpoint loaded; `close` ends it. ``hf`` gives an `HfModel`.

    Args:
        model: a folder, or the hub id of a model in the local cache.
        backend: the engine.
        options: how the model is run.

    Raises:
        InputError: when the model or the backend is not what it should be.
        LayerSwapError: when its files lack a tensor, or the engine fails to start.
    """
    from safetensors import SafetensorError

    model = str(model)
    show_step(Step(f"starting {backend} on {model}"))
    try:
        with quietly(), refuse_code(model):
            if backend == "hf":
                from ablations.engines.hf_model import HfModel

                return HfModel(model, options)
            vllm_engine.prepare_vllm(options)
            from ablations.engines.vllm_model import VllmModel

            return VllmModel(model, options)
    except LayerSwapError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        kind = LayerSwapError if isinstance(error, RuntimeError) else InputError
        why = vllm_engine.explain_start(error, Path(model), options) if backend == "vllm" else error
        raise kind(f"{model}: {backend} cannot load it: {why}") from error


def run_tasks(
    engine: LoadedModel,
    resolved: ResolvedTasks,
    folder: Path,
    backend: Backend,
    answer_file: AnswerFile | None = None,
) -> Evaluation:
    """Ask an engine the tasks of a request and return scores and samples.

    Args:
        engine: a model of `start_model`.
        resolved: tasks and settings.
        folder: of the model, whose chat template is applied.
        backend: name of the engine in the result.
        answer_file: open; answers are stored there as they arrive, and what it has is not sent
            again.

    Raises:
        InputError: for a task whose data cannot be read.
    """
    evaluation = _score(engine, resolved, folder, backend, answer_file)
    assert evaluation is not None, "an engine answers what is not stored"
    return evaluation


def rescore(
    resolved: ResolvedTasks, folder: Path, backend: Backend, answer_file: AnswerFile
) -> Evaluation | None:
    """Return what `run_tasks` does from stored answers alone; None where one is missing."""
    return _score(None, resolved, folder, backend, answer_file)


def _score(
    engine: LoadedModel | None,
    resolved: ResolvedTasks,
    folder: Path,
    backend: Backend,
    answer_file: AnswerFile | None,
) -> Evaluation | None:
    tasks = load_tasks(resolved)
    show_step(Step(f"{', '.join(resolved.request.tasks)}: preparing prompts"))
    template = chat_tokenizer(folder) if resolved.request.apply_chat_template else None
    make_lm = functools.partial(StoredAnswersLM, engine, resolved.request, template, answer_file)
    evaluation = score_tasks(make_lm, resolved, tasks, folder, backend)
    if evaluation is None or answer_file is None:
        return evaluation
    return evaluation.model_copy(update={"answers_before": answer_file.reused})


def score_tasks(
    make_lm: Callable[..., Any],
    resolved: ResolvedTasks,
    tasks: Sequence[Any],
    folder: Path,
    backend: Backend,
) -> Evaluation | None:
    """Have lm-eval ask its task objects, repeat by repeat, and return scores and samples.

    None where a model object cannot answer the requests of its repeat.

    Args:
        make_lm: takes ``sample_seed`` and ``item_starts`` of a repeat and returns the model object
            that answers it, as `StoredAnswersLM` does.
        resolved: the request.
        tasks: of `load_tasks`.
        folder: of the model.
        backend: name of the engine in the result.
    """
    started = time.monotonic()
    request, groups = resolved.request, resolved.groups
    # Whatever the limit, so that an item has one number.
    starts = item_starts(groups, {task.task_name: len(task.eval_docs) for task in tasks})
    raw: Any = {"samples": {}, "configs": {}}
    scores, samples, notes = list[Any](), list[Any](), tuple[str, ...]()
    thinking: list[tuple[Key, Sequence[Outcome]]] = []
    for repeat, tasks_of_repeat in _repeats(request, tasks):
        lm = make_lm(sample_seed=f"{request.seed} {repeat}", item_starts=starts)
        with quietly():
            _prepare(tasks_of_repeat, request, repeat)
            if not lm.can_answer(_requests_of(tasks_of_repeat, lm, request)):
                return None
            raw_result = _evaluate(lm, tasks_of_repeat, request)
        result = with_groups(raw_result, groups, starts)
        outcomes = by_items_of_groups(lm.outcomes, groups, starts)
        stored_keys = by_items_of_groups(lm.stored_keys, groups, starts)
        thinking += outcomes.items()
        samples.append(read_samples(result, outcomes, repeat, stored_keys))
        scores.append(
            scores_of_samples(result, samples[-1], seed=request.seed, level=request.level)
        )
        if repeat == 0:
            raw, notes = result, tuple(notes_on(outcomes))
    all_samples = tuple(sample for part in samples for sample in part)
    notes = (
        *notes,
        *thinking_notes(thinking),
        *empty_notes(all_samples),
        *short_notes(all_samples, raw["configs"]),
    )
    return Evaluation(
        model=str(folder),
        backend=backend,
        scores=mean_scores(scores, samples, request.level) if scores else (),
        samples=all_samples,
        task_versions={name: str(raw["versions"].get(name) or "") for name in raw["samples"]},
        num_fewshot={name: int(raw["n-shot"][name]) for name in raw["samples"]},
        versions=backend_versions(backend),
        elapsed_s=time.monotonic() - started,
        skipped=dict(resolved.skipped),
        notes=(
            *date_notes(request, folder),
            *notes,
            *task_notes(raw["configs"], all_samples, request.isolation),
        ),
        unpublished=tuple(
            task
            for task in raw["samples"]
            if not may_be_published(raw["configs"].get(task, {}).get("metadata"))
        ),
    )


def _repeats(
    request: EvaluationRequest, tasks: Sequence[Any]
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the number of every repeat, and the tasks that it asks: after the first what is drawn.

    Likelihoods are the same in every repeat.
    """
    for repeat in range(request.repeats):
        if asked := [task for task in tasks if repeat == 0 or generates(task)]:
            yield repeat, asked


def _prepare(tasks: Sequence[Any], request: EvaluationRequest, repeat: int) -> None:
    """Set what lm-eval's tasks and models draw from, and the request's settings of generation.

    The examples in the prompts are those of all repeats.
    """
    import numpy
    import torch

    seed = request.seed
    if repeat:  # far from that of the first
        seed = int.from_bytes(sha256(f"{seed} {repeat}".encode()).digest()[:4])
    changed = request.gen_kwargs.as_lm_eval()
    random.seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 - tasks draw from it
    torch.manual_seed(seed)
    for task in tasks:
        if generates(task) and changed:
            task.set_config(key="generation_kwargs", value=changed, update=True)
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=request.seed)


def _requests_of(tasks: Sequence[Any], lm: StoredAnswersLM, request: EvaluationRequest) -> Requests:
    """Return kind -> the requests of tasks, as lm-eval's `evaluate` hands them to a model."""
    is_chat = request.apply_chat_template
    requests: dict[str, list[Any]] = {}
    for task in tasks:
        task.build_all_requests(
            limit=request.limit,
            rank=lm.rank,
            world_size=lm.world_size,
            system_instruction=request.system_instruction,
            apply_chat_template=is_chat,
            fewshot_as_multiturn=request.is_multiturn,
            chat_template=lm.apply_chat_template if is_chat else None,
            tokenizer_name=lm.tokenizer_name if is_chat else "",
        )
        for one in task.instances:
            requests.setdefault(one.request_type, []).extend([one] * one.repeats)
    return requests


def _evaluate(lm: Any, tasks: Sequence[Any], request: EvaluationRequest) -> dict[str, Any]:
    """Return lm-eval's result for tasks whose requests are built.

    It would build them again, which takes a quarter to half of the time of a score from stored
    answers. lm-eval's `simple_evaluate` does the same, and asks pip, git and the GPU's driver about
    this machine every time: 0.3 s for each model on two cores.
    """
    from lm_eval import evaluate

    for task in tasks:
        task.build_all_requests = _do_nothing
    try:
        raw = evaluate(
            lm=lm,
            task_dict={"tasks": {task.task_name: task for task in tasks}, "groups": {}},
            confirm_run_unsafe_code=True,  # `resolve` left out what may not run
            limit=request.limit,
            bootstrap_iters=0,
            system_instruction=request.system_instruction,
            apply_chat_template=request.apply_chat_template,
            fewshot_as_multiturn=request.is_multiturn,
        )
    finally:
        for task in tasks:
            del task.build_all_requests  # the next repeat has others
    return dict(raw)


def _do_nothing(**_options: Any) -> None: ...
