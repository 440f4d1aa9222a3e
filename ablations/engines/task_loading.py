"""The tasks of a request as lm-eval's objects with their data, and the errors of tasks in words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablations.engines.questions import task_limit
from ablations.engines.quiet import quietly
from ablations.machine.progress import Step, show_step
from ablations.models.load import without_code_of_tokenizers
from ablations.requests.known_tasks import make_task
from ablations.requests.lm_eval_index import lm_eval_folder
from ablations.requests.resolve import ResolvedTasks
from ablations.tasks.catalog import floor_of
from ablations.tasks.data import DataUnavailable, stop_retries
from ablations.tasks.mbpp import check_isolation
from layerswap_method.errors import InputError, LayerSwapError, describe_error

_NETWORK = ("requests", "httpx", "huggingface_hub", "urllib3", "aiohttp")
"""Packages whose errors are about a hub or the way to it."""

_NOT_CACHED = ("Couldn't find cache for", "Couldn't find a module script")
"""Texts of datasets and evaluate, offline, for a data set of which they have only other parts, and
for a metric. They raise ValueError and FileNotFoundError there, without the error of the hub."""

_ASKS = re.compile(r"--(model_args|metadata)|No tokenizer|missing .* required .*argument")
"""Words of tasks that lack an argument: lm-eval's are of an AssertionError, Python's of a
TypeError, and both types can mean anything."""


def load_tasks(resolved: ResolvedTasks) -> list[Any]:
    """Return lm-eval's task objects of a request with their data.

    Raises:
        InputError: for a task whose file or data is wrong, one that executes code on a machine that
            can hold none, or one that the protocol does not fit.
        DataUnavailable: where the data is on a hub that cannot be reached.
    """
    request = resolved.request
    if resolved.runs_code:
        assert request.isolation is not None, "without one such tasks are skipped"
        # A machine that can hold none is reported before the model has answered for an hour.
        check_isolation(request.isolation)
    # Tasks hand their metadata to the function that loads their data; see ablations/tasks.
    metadata = dict(request.metadata)
    if request.data_dir is not None:
        metadata["data_dir"] = str(request.data_dir.absolute())
    tasks: list[Any] = []
    for name in resolved.tasks:
        show_step(Step(f"reading the data of {name}"))
        file = resolved.known.file(name)
        place = file.files[0]
        if place.is_relative_to(lm_eval_folder()):
            stop_retries()
        with (
            _task_errors(name, place),
            quietly(),
            _seeded(request.seed),
            without_code_of_tokenizers(),
        ):
            task = make_task(name, file, metadata, request.isolation)
            _check_settings(task)
            if name in request.items:
                _take_items(task, request.items[name])
            tasks.append(task)
    if rolling := [t.task_name for t in tasks if t.OUTPUT_TYPE == "loglikelihood_rolling"]:
        raise InputError(
            f"task {', '.join(rolling)}: it scores the likelihood of whole texts "
            "(loglikelihood_rolling), which has no answers to store; use plain lm-eval"
        )
    if pictured := [t.task_name for t in tasks if getattr(t, "MULTIMODAL", False)]:
        raise InputError(
            f"task {', '.join(pictured)}: it shows images or sounds, which models of text cannot "
            "see; use plain lm-eval with a model that can"
        )
    choosing = [task.task_name for task in tasks if not generates(task)]
    if request.enable_thinking and choosing:
        raise InputError(
            f"enable_thinking: {', '.join(choosing)} scores given answers, before which no model "
            "thinks; leave such tasks out, or evaluate them without it"
        )
    return tasks


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed Python's and numpy's generators in the block, from which RULER, say, draws its items."""
    import numpy as np

    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - lm-eval's tasks use it
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _take_items(task: Any, rows: Sequence[int]) -> None:
    """Have a task ask the items of these rows only, in this order.

    lm-eval's own `samples` sorts the rows, so that a part of them would not be a beginning.
    """
    docs = task.eval_docs
    if outside := [row for row in rows if not 0 <= row < len(docs)]:
        raise ValueError(f"it has {len(docs)} items, and evaluate.items names item {outside[0]}")
    chosen = docs.select(rows) if hasattr(docs, "select") else [docs[row] for row in rows]
    setattr(task, "test_docs" if task.has_test_docs() else "validation_docs", lambda: chosen)


def _check_settings(task: Any) -> None:
    """Raise ValueError for what lm-eval would find wrong only after the answers."""
    config, has_function = task.config, bool(task.config.process_results)
    floor_of(config.metadata)
    task_limit(config.generation_kwargs or {})
    metrics = getattr(task, "_metric_fn_list", None)
    aggregations = getattr(task, "_aggregation_list", None)
    if (metrics == {} and not has_function) or not getattr(task, "_filters", True):
        raise ValueError("an empty metric_list or filter_list")
    tables: dict[str, Any] = {
        "metric": {} if has_function else metrics,
        "aggregation": aggregations,
    }
    for kind, functions in tables.items():
        if unknown := [name for name, function in (functions or {}).items() if function is None]:
            raise ValueError(f"no {kind} {', '.join(map(repr, unknown))}")


def count_items(resolved: ResolvedTasks) -> int:
    """Return how many items a request has, up to its limit of each task.

    Raises:
        InputError: as `load_tasks`.
        DataUnavailable: where the data is on a hub that cannot be reached.
    """
    limit = resolved.request.limit
    sizes = (len(task.eval_docs) for task in load_tasks(resolved))
    return sum(size if limit is None else min(size, limit) for size in sizes)


def check_data(requests: Iterable[ResolvedTasks]) -> None:
    """Load the data of every request once, so that an error comes before a model is loaded.

    Raises:
        InputError: with every problem, where the user can mend one.
        LayerSwapError: with every problem, where all of them are of a hub.
    """
    problems: list[LayerSwapError] = []
    for resolved in requests:
        try:
            load_tasks(resolved)
        except LayerSwapError as error:
            problems.append(error)
    texts = list(dict.fromkeys(problem.message for problem in problems))
    if len(texts) > 1:
        texts = [InputError.from_problems("data of the tasks", texts).message]
    if any(isinstance(problem, InputError) for problem in problems):
        raise InputError(*texts)
    if problems:
        raise LayerSwapError(*texts)


@contextmanager
def _task_errors(name: str, file: Path) -> Iterator[None]:
    """Raise what goes wrong with a task in the block as an error that says what to do.

    Args:
        name: of the task.
        file: its YAML file.

    Raises:
        InputError: where the task's file or its data is wrong.
        DataUnavailable: where the hub cannot be reached.
    """
    try:
        yield
    except LayerSwapError as error:
        if type(error) not in (InputError, DataUnavailable):
            raise
        raise type(error)(f"task {name}: {error.message}") from error
    except (Exception, SystemExit) as error:  # a task's own code may raise anything
        if _is_about_a_hub(error):
            raise DataUnavailable(
                f"task {name}: its data is not on this machine and the hub cannot be reached "
                f"({describe_error(error)}); run this where there is a network, without "
                "HF_HUB_OFFLINE and HF_DATASETS_OFFLINE, or leave the task out"
            ) from error
        where = f" ({file})"
        if isinstance(error, ImportError):
            raise InputError(
                f"task {name}: it needs a package that is not installed: "
                f"{describe_error(error)}{where}"
            ) from error
        if _ASKS.search(str(error)):
            raise InputError(
                f"task {name}: it asks for an argument: {describe_error(error)}{where}; give it "
                "here with --metadata NAME=VALUE, such as tokenizer=MODEL, or in a study with "
                "evaluate: {metadata: {NAME: VALUE}}"
            ) from error
        if isinstance(error, FileNotFoundError):
            where = f"; looked beside {file} and in the working directory"
        kind = "data" if isinstance(error, OSError) else "file or data"
        raise InputError(
            f"task {name}: its {kind} cannot be read: {describe_error(error)}{where}"
        ) from error


def _is_about_a_hub(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__module__.partition(".")[0] in _NETWORK
        or str(error).startswith(_NOT_CACHED)
        or _is_about_a_hub(error.__cause__ or error.__context__)
    )


def generates(task: Any) -> bool:
    """Return whether a task of lm-eval has answers generated."""
    return bool(task.OUTPUT_TYPE == "generate_until")
