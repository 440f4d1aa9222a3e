"""Which checkpoints of a run stay: those with the best scores on given tasks (section 3.1)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.engines.backends import resolve_backend
from ablations.engines.live import open_live
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.scoring.records import Evaluation, EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS
from ablations.train.config import Select
from ablations.train.folder import step_of
from layerswap_method.methods.read import merge_of_one
from layerswap_method.recipe.references import Model

logger = logging.getLogger(__name__)

Tasks = tuple[str | tuple[str, ...], ...]


@dataclass(frozen=True)
class CodeExecution:
    """Leave to run the programs that models write (MBPP)."""

    isolation: str = "bwrap"
    """Sandbox: ``bwrap``, or ``none`` where the container is one."""


def check_select(select: Select, code: CodeExecution | None = None) -> None:
    """Check what can be checked before hours of training.

    Raises:
        InputError: for unknown tasks, or an engine that is not installed.
    """
    resolve_backend(select.backend)
    check_tasks(_request(select, code))


def select_checkpoint(
    checkpoints: Sequence[Path],
    select: Select,
    base: Path,
    *,
    are_adapters: bool,
    code: CodeExecution | None = None,
) -> tuple[Path, list[dict[str, Any]]]:
    """Evaluate every checkpoint in one live engine; return the best, and all scores, best first.

    Checkpoints that are above the base on the secondary tasks come first, then the score on the
    primary ones counts; of equal ones the earlier is better. Nothing is removed.

    Args:
        checkpoints: whole ones of one run.
        select: the tasks, and how many stay.
        base: what they were trained from.
        are_adapters: whether they are adapters to `base`.
        code: how programs may run that models write; None leaves such tasks out.

    Raises:
        InputError: for unknown tasks, or an engine that is not installed.
        SwapFailed: for a model that the engine cannot be given.
    """
    request = _request(select, code)
    engine = open_live(base, select.backend, EngineOptions(batch_size=select.batch_size))

    def evaluate(name: str, folder: Path, adapter: Path | None = None) -> Evaluation:
        return engine.evaluate(merge_of_one(Model(name, folder, adapter)), request)

    rows: list[dict[str, Any]] = []
    try:
        floor = _mean(evaluate(str(base), base), select.secondary) if select.secondary else None
        for checkpoint in checkpoints:
            place = (base, checkpoint) if are_adapters else (checkpoint,)
            evaluation = evaluate(checkpoint.name, *place)
            row: dict[str, Any] = {
                "step": step_of(checkpoint),
                "score": _mean(evaluation, select.tasks),
            }
            if floor is not None:
                row["secondary"] = _mean(evaluation, select.secondary)
                row["secondary_of_base"] = floor
            row["tasks"] = [
                score.model_dump(mode="json", exclude_defaults=True)
                for score in _first_scores(evaluation)
            ]
            rows.append(row)
            logger.info("checkpoint of step %d: %.4f", row["step"], row["score"])
    finally:
        engine.close()
    rows.sort(key=lambda row: (_is_below(row), -row["score"], row["step"]))
    for rank, row in enumerate(rows):
        row["kept"] = rank < select.keep
    by_step = {step_of(checkpoint): checkpoint for checkpoint in checkpoints}
    return by_step[rows[0]["step"]], rows


def _is_below(row: dict[str, Any]) -> bool:
    return "secondary" in row and row["secondary"] <= row["secondary_of_base"]


def _request(select: Select, code: CodeExecution | None) -> EvaluationRequest:
    entries = (*select.tasks, *select.secondary)
    names = [n for entry in entries for n in ([entry] if isinstance(entry, str) else entry)]
    options: dict[str, Any] = {}
    if code is not None:
        options = {"allow_code_execution": True, "code_isolation": code.isolation}
    return EvaluationRequest(
        tasks=tuple(dict.fromkeys(names)),
        include_path=SHIPPED_TASKS if select.include_path is None else Path(select.include_path),
        data_dir=None if select.data_dir is None else Path(select.data_dir),
        limit=select.limit,
        **options,
    )


def _first_scores(evaluation: Evaluation) -> list[Any]:
    """Return the first score of every task."""
    names = dict.fromkeys(score.task for score in evaluation.scores)
    return [evaluation.score(name) for name in names]


def _mean(evaluation: Evaluation, tasks: Tasks) -> float:
    """Return the mean over tasks; a metric that is better when lower counts as negative.

    A task that was skipped, such as MBPP without leave to run code, does not count.
    """
    values = {
        score.task: score.value if score.higher_is_better else -score.value
        for score in _first_scores(evaluation)
    }
    means = []
    for entry in tasks:
        names = [entry] if isinstance(entry, str) else entry
        known = [values[name] for name in names if name in values]
        if known:
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else 0.0
