"""How large a task is, before an engine is started: items and tokens.

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

from ablations.engines.answering import asked_limit, within
from ablations.engines.quiet import quietly
from ablations.engines.task_faults import task_errors
from ablations.engines.task_loading import load_tasks, raise_problems
from ablations.machine.progress import Step, tell
from ablations.models.context import context_of
from ablations.scoring.records import EvaluationRequest
from ablations.tasks.data import DataAway
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
    """Return task -> its size, or why that is not known.

    Args:
        requests: each with a single task.
        model: folder with config and tokenizer.
        max_model_len: context in tokens; None for the model's own.

    Raises:
        InputError: for tasks whose files or data are wrong.
        LayerSwapError: for data that is not here, where the user has switched downloads off.
    """
    from transformers import AutoTokenizer

    sizes: dict[str, TaskSize | str] = {}
    problems: list[LayerSwapError] = []
    with _offline() as is_asked_for:
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
            context = max_model_len or context_of(str(model))
        except (OSError, ValueError) as error:
            why = f"the tokenizer is not here ({first_line(error)})"
            return {request.tasks[0]: why for request in requests}
        for request in requests:
            tell(Step(f"counting the tokens of {request.tasks[0]}"))
            try:
                sizes[request.tasks[0]] = _size(request, tokenizer, context)
            except DataAway as error:
                sizes[request.tasks[0]] = _AWAY
                problems += [error] if is_asked_for else []
            except LayerSwapError as error:
                sizes[request.tasks[0]] = error.message
                is_fault = isinstance(error, InputError) and not isinstance(error, NoIsolation)
                problems += [error] if is_fault else []
    raise_problems(problems)
    return sizes


def _size(request: EvaluationRequest, tokenizer: Any, context: int | None) -> TaskSize:
    (task,), _ = load_tasks(request)
    if not hasattr(task, "build_all_requests"):
        raise LayerSwapError(f"{request.tasks[0]} is a group with settings of its own")
    items = min(len(task.eval_docs), request.limit or sys.maxsize)
    with task_errors(request.tasks[0], None), quietly():
        task.set_fewshot_seed(seed=request.seed)
        task.build_all_requests(limit=min(items, _COUNTED))
    asked = list(task.instances)
    counted = len({each.doc_id for each in asked})
    given = request.protocol.gen_kwargs
    seconds = [each.args[1] if len(each.args) > 1 else "" for each in asked]
    choices = [second if isinstance(second, str) else "" for second in seconds]
    lengths = [
        # Not verbose: too long a prompt is cut below, and transformers would warn of errors.
        len(tokenizer(f"{each.args[0]}{choice}", verbose=False)["input_ids"])
        for each, choice in zip(asked, choices, strict=True)
    ]
    # A limit that the user gives may take what the longest prompt leaves of the context.
    leaves = None if given.max_gen_toks is None else max(lengths)
    prompts = answers = 0
    for second, length in zip(seconds, lengths, strict=True):
        limit = 0
        if not isinstance(second, str):
            limit = asked_limit({**second, **given.as_lm_eval()})
            limit = limit if context is None else within(limit, context, leaves)
        kept = length if context is None else min(length, context - limit)
        prompts, answers = prompts + kept, answers + limit
    items *= request.protocol.repeats if answers else 1
    return TaskSize(items, prompts * items // counted, answers * items // counted)


@contextmanager
def _offline() -> Iterator[bool]:
    """Have the libraries that could download data look into their caches only.

    Yields whether the user wants that anyway.
    """
    import datasets.config
    import huggingface_hub.constants

    modules: list[Any] = [huggingface_hub.constants, datasets.config]
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield any(before)
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
