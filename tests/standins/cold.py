"""What a fresh engine says of a checkpoint on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ablations.engines.lm_eval_backend import loaded, run_tasks
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.scoring.records import Evaluation, EvaluationRequest


def evaluate_cold(
    model: Path | str,
    request: EvaluationRequest,
    backend: Any = "hf",
    options: EngineOptions | None = None,
) -> Evaluation:
    """Start an engine on a checkpoint, ask it, end it."""
    check_tasks(request)
    with loaded(model, backend, options or EngineOptions(), request.seed) as engine:
        return run_tasks(engine, request, model=str(model), backend=backend, folder=Path(model))
