"""Silences progress bars and warnings of lm-eval and its libraries that need no action."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CHATTY = (
    "sacrebleu",
    "lm_eval.api.task",
    "lm_eval.utils",
    "lm_eval.models.utils",
    "lm_eval.evaluator",
    "lm_eval.models.huggingface",
    "lm_eval.models.vllm_causallms",
    "transformers.tokenization_utils_base",
)
"""Loggers whose warnings nobody can act on."""


_BLOCKS = threading.RLock()


@contextmanager
def quietly() -> Iterator[None]:
    """Switch off a dozen progress bars per model, and warnings, until the block ends.

    What it changes is the process's, as are the random states and defaults that a load or an
    evaluation sets in such a block. So one thread has one at a time, and others wait.

    lm-eval has no option for its bars, which like those of transformers, datasets and vLLM are
    made with tqdm. It asks git about the working directory, whose complaint reaches the terminal;
    sacrebleu warns of tokenised text at every call, lm-eval of every prompt that is cut (see
    `observed.notes_on`) and every local data set.
    """
    with _BLOCKS, _quiet():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    import lm_eval.evaluator
    from tqdm import tqdm

    make_bar, ask_git = tqdm.__init__, lm_eval.evaluator.get_git_commit_hash
    levels = {logger: logger.level for logger in map(logging.getLogger, _CHATTY)}

    def make_no_bar(bar: Any, *arguments: Any, **options: Any) -> None:
        make_bar(bar, *arguments, **(options | {"disable": True}))

    tqdm.__init__ = make_no_bar  # type: ignore[assignment]
    lm_eval.evaluator.get_git_commit_hash = lambda: None
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"(vllm|torch)\b")
            yield
    finally:
        tqdm.__init__ = make_bar  # type: ignore[method-assign]
        lm_eval.evaluator.get_git_commit_hash = ask_git
        for logger, level in levels.items():
            logger.setLevel(level)
