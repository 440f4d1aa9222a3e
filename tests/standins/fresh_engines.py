"""What a fresh engine says of a checkpoint on disk."""

from contextlib import closing
from pathlib import Path

from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import EngineOptions
from ablations.requests.resolve import resolve


def evaluate_cold(model, request, backend="hf", options=None):
    tasks = resolve(request)
    with closing(start_model(model, backend, options or EngineOptions())) as lm:
        return run_tasks(lm, tasks, Path(model), backend)
