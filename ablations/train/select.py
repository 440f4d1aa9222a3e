"""Which checkpoints of a run are kept: those with the best scores on given tasks (section 3.1)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.engines.backends import resolve_backend
from ablations.engines.live import open_live
from ablations.engines.options import EngineOptions
from ablations.engines.task_loading import check_tasks
from ablations.scoring.records import Evaluation, EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS
from ablations.train.config import Select
from ablations.train.folder import SavedCheckpoint
from layerswap_method.methods.linear import merge_of_one
from layerswap_method.recipe.references import Model

logger = logging.getLogger(__name__)


def check_select(chosen: Select) -> None:
    """Check what can be checked before hours of training.

    Raises:
        InputError: for unknown tasks, or an engine that is not installed.
    """
    resolve_backend(chosen.backend)
    check_tasks(_request(chosen))


def select(
    checkpoints: Sequence[SavedCheckpoint], chosen: Select, base: Path | None
) -> tuple[SavedCheckpoint, list[dict[str, Any]]]:
    """Evaluate every checkpoint in one live engine; return the best, and all scores, best first.

    Of equal scores the earlier one is better. Nothing is removed.

    Args:
        checkpoints: whole ones of one run.
        chosen: what is asked, and how many stay.
        base: what adapters stand on; None for whole checkpoints.

    Raises:
        InputError: for unknown tasks, or an engine that is not installed.
        SwapFailed: for a model that the engine cannot be given.
    """
    request = _request(chosen)
    options = EngineOptions(batch_size=chosen.batch_size)
    engine = open_live(base or checkpoints[0].folder, chosen.backend, options)
    rows: list[tuple[float, SavedCheckpoint, Evaluation]] = []
    try:
        for each in checkpoints:
            stream = (
                merge_of_one(Model(str(each.folder), each.folder))
                if base is None
                else merge_of_one(Model(str(each.folder), base, each.folder))
            )
            found = engine.evaluate(stream, request)
            rows.append((_mean(found), each, found))
            logger.info("checkpoint of %d samples: %.4f", each.samples, rows[-1][0])
    finally:
        engine.close()
    rows.sort(key=lambda row: (-row[0], row[1].step))
    return rows[0][1], [
        {
            "step": each.step,
            "samples": each.samples,
            "score": mean,
            "kept": place < chosen.keep,
            "tasks": [score.model_dump(mode="json") for score in _firsts(found)],
        }
        for place, (mean, each, found) in enumerate(rows)
    ]


def _request(chosen: Select) -> EvaluationRequest:
    include = SHIPPED_TASKS if chosen.include_path is None else Path(chosen.include_path)
    return EvaluationRequest(
        tasks=chosen.tasks,
        include_path=include,
        data_dir=None if chosen.data_dir is None else Path(chosen.data_dir),
        limit=chosen.limit,
    )


def _firsts(found: Evaluation) -> list[Any]:
    """Return the first score of every task."""
    return [found.score(task) for task in dict.fromkeys(score.task for score in found.scores)]


def _mean(found: Evaluation) -> float:
    """Return the mean over tasks; a metric that is better when lower counts as negative."""
    first = _firsts(found)
    total: float = sum(each.value if each.higher_is_better else -each.value for each in first)
    return total / len(first)
