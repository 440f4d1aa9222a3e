"""Scores from stored answers: lm-eval's filters and metrics run, and no model is loaded."""

from __future__ import annotations

from pathlib import Path

from ablations.engines.answers import AnswerFile
from ablations.engines.lm_eval_backend import run_tasks
from ablations.engines.stored_answers_lm import Unanswered
from ablations.scoring.evaluation import Backend, Evaluation, EvaluationRequest


def rescore(
    request: EvaluationRequest, folder: Path, backend: Backend, answers: AnswerFile
) -> Evaluation | None:
    """Return the evaluation of a model whose answers are stored, None where one is missing.

    See `run_tasks`; `folder` has the model's tokenizer, for chat templates.
    """
    try:
        return run_tasks(None, request, folder, backend, answers)
    except Unanswered:
        return None
