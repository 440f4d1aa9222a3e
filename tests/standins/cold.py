"""What a fresh engine says of a checkpoint on disk."""

from pathlib import Path

from ablations.engines.lm_eval_backend import loaded, run_tasks
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_tasks


def evaluate_cold(model, request, backend="hf", options=None):
    check_tasks(request)
    with loaded(model, backend, options or EngineOptions(), request.seed) as engine:
        return run_tasks(engine, request, model=str(model), backend=backend, folder=Path(model))
