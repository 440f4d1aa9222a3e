"""The size of a task, before an engine is started: items and tokens.

Reads the data of tasks where it is on this machine, and a tokenizer; nothing is downloaded and no
weights are read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.engines.answering import task_limit, within
from ablations.engines.quiet import quietly
from ablations.engines.task_loading import load_tasks, raise_problems, task_errors
from ablations.machine.progress import Step, show_step
from ablations.models.fit import context_of
from ablations.models.load import read_tokenizer
from ablations.models.tokens import prompt_tokens
from ablations.requests.resolve import resolve
from ablations.scoring.evaluation import EvaluationRequest
from ablations.tasks.data import DataUnavailable
from ablations.tasks.mbpp import NoIsolation
from layerswap_method.errors import InputError, LayerSwapError, first_line

_COUNTED = 100
"""Items of a task whose tokens are counted; the others are taken to be alike."""

_AWAY = "its data is not on this machine; a dry run downloads nothing"


@dataclass(frozen=True)
class TaskSize:
    """Items and tokens of one task for one model."""

    items: int
    """Items; what is generated several times counts every time."""

    prompt_tokens: int
    """Tokens of all prompts (with the answers to choose from), from the first items' mean."""

    answer_tokens: int
    """Tokens that may be generated at most."""


def measure_tasks(
    requests: Iterable[EvaluationRequest], model: Path, max_model_len: int | None
) -> dict[str, TaskSize | str]:
    """Return task -> its size, or why that is not known; each request has a single task.

    `model` is a folder with config and tokenizer; `max_model_len` None is its own context.

    Raises:
        InputError: for tasks whose files or data are wrong.
        LayerSwapError: for data not on this machine, where the user has switched downloads off.
    """
    sizes: dict[str, TaskSize | str] = {}
    problems: list[LayerSwapError] = []
    with _offline() as was_offline:
        try:
            tokenizer = read_tokenizer(model)
            context = max_model_len or context_of(str(model))
        except (OSError, ValueError) as error:
            reason = f"no tokenizer on this machine ({first_line(error)})"
            return {request.tasks[0]: reason for request in requests}
        for request in requests:
            show_step(Step(f"counting the tokens of {request.tasks[0]}"))
            try:
                sizes[request.tasks[0]] = _size(request, tokenizer, context)
            except DataUnavailable as error:
                sizes[request.tasks[0]] = _AWAY
                problems += [error] if was_offline else []
            except NoIsolation as error:
                sizes[request.tasks[0]] = error.message
            except InputError as error:
                problems.append(error)
    raise_problems(problems)
    return sizes


def _size(request: EvaluationRequest, tokenizer: Any, context: int | None) -> TaskSize:
    tasks = load_tasks(resolve(request))
    sizes = [_size_of_task(task, request, tokenizer, context) for task in tasks]
    return TaskSize(
        sum(size.items for size in sizes),
        sum(size.prompt_tokens for size in sizes),
        sum(size.answer_tokens for size in sizes),
    )


def _size_of_task(
    task: Any, request: EvaluationRequest, tokenizer: Any, context: int | None
) -> TaskSize:
    items = min(len(task.eval_docs), request.limit or sys.maxsize)
    with task_errors(request.tasks[0], None), quietly():
        task.set_fewshot_seed(seed=request.seed)
        task.build_all_requests(limit=min(items, _COUNTED))
    counted = len({request.doc_id for request in task.instances})
    sampling = request.gen_kwargs
    lengths, limits = [], []
    for prompt, second in (request.args for request in task.instances):
        is_generated = not isinstance(second, str)
        with quietly():  # too long a prompt is cut, and transformers would warn of errors
            tokens = prompt_tokens(tokenizer, prompt if is_generated else f"{prompt}{second}")
        lengths.append(len(tokens))
        limits.append(task_limit({**second, **sampling.as_lm_eval()}) if is_generated else 0)
    if context is not None:
        # A limit that the user gives may take what the longest prompt leaves of the context.
        longest = None if sampling.max_gen_toks is None else max(lengths)
        limits = [limit and within(limit, context, longest) for limit in limits]
        pairs = zip(lengths, limits, strict=True)
        lengths = [min(length, context - limit) for length, limit in pairs]
    items *= request.repeats if any(limits) else 1
    return TaskSize(items, sum(lengths) * items // counted, sum(limits) * items // counted)


@contextmanager
def _offline() -> Iterator[bool]:
    """Have the libraries that could download data look into their caches only.

    Yields whether the user wants that anyway.
    """
    import datasets.config
    import huggingface_hub.constants

    modules: list[Any] = [huggingface_hub.constants, datasets.config]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield any(before)
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
