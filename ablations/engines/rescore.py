"""Scores from stored answers: lm-eval's filters and metrics run, and no model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from ablations.engines.answering import Answering, Question, task_limit
from ablations.engines.answers import AnswerFile
from ablations.engines.lm_eval_backend import run_tasks
from ablations.models.load import read_tokenizer
from ablations.scoring.evaluation import Backend, Evaluation, EvaluationRequest
from ablations.scoring.observed import Outcome


class _Unanswered(Exception):
    """There is a question without a stored answer."""


def rescore(
    request: EvaluationRequest, folder: Path, backend: Backend, answers: AnswerFile
) -> Evaluation | None:
    """Return the evaluation of a model whose answers are stored, None where one is missing.

    See `run_tasks`; `folder` has the model's tokenizer, for chat templates.
    """
    try:
        lm = _StoredModel(folder, request.apply_chat_template)
        return run_tasks(lm, request, folder, backend, answers)
    except _Unanswered:
        return None


class _StoredModel(Answering, LM):  # type: ignore[misc]
    """Has stored answers and no engine."""

    tokenizer_name = ""

    def __init__(self, folder: Path, is_chat: bool) -> None:
        super().__init__()
        self.tokenizer_name = str(folder)
        self.tokenizer = read_tokenizer(folder) if is_chat else None

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        raise _Unanswered

    def _fit(self, questions: Sequence[Question]) -> None:
        """Do nothing: stored answers say what room they had."""

    def _has_room(self, question: Question, was: Outcome) -> bool:
        options = question.request.args[1]
        if was.is_cut and was.has_bos is None:  # whether its BOS was cut off is not known
            return False
        if isinstance(options, str) or not self.keeps_task_limit:
            return True
        # The room of a longer answer depends on the other prompts.
        return task_limit(options, 0) <= was.context_tokens // 2

    def _send_nothing(self, questions: Sequence[Question]) -> None:
        raise _Unanswered

    _generate = _score_texts = _send_nothing
