"""Which checkpoints of a run are kept: those with the best scores on given tasks (section 3.1)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablations.engines.live import open_live
from ablations.engines.options import EngineOptions
from ablations.scoring.records import Evaluation, EvaluationRequest
from ablations.tasks.catalog import SHIPPED_TASKS
from ablations.train.config import Select
from ablations.train.folder import SavedCheckpoint
from layerswap_method.stream.weight_stream import checkpoint_stream

logger = logging.getLogger(__name__)


def select(
    checkpoints: Sequence[SavedCheckpoint], chosen: Select, base: Path | None
) -> tuple[SavedCheckpoint, list[dict[str, Any]]]:
    """Evaluate every checkpoint in one live engine; return the best, and all scores, best first.

    The others than the best `keep` lose their folders. Of equal scores the earlier one is better.

    Args:
        checkpoints: whole ones of one run.
        chosen: what is asked, and how many stay.
        base: what adapters stand on; None for whole checkpoints.

    Raises:
        InputError: for unknown tasks, or an engine that is not installed.
        SwapFailed: for adapters that the engine cannot be given, such as prefixes.
    """
    include = SHIPPED_TASKS if chosen.include_path is None else Path(chosen.include_path)
    request = EvaluationRequest(
        tasks=chosen.tasks,
        include_path=include,
        data_dir=None if chosen.data_dir is None else Path(chosen.data_dir),
        limit=chosen.limit,
    )
    options = EngineOptions(batch_size=chosen.batch_size)
    engine = open_live(base or checkpoints[0].folder, chosen.backend, options)
    rows: list[tuple[float, SavedCheckpoint, Evaluation]] = []
    try:
        for each in checkpoints:
            stream = (
                checkpoint_stream(each.folder)
                if base is None
                else checkpoint_stream(base, each.folder)
            )
            found = engine.evaluate(stream, request)
            rows.append((_mean(found), each, found))
            logger.info("checkpoint of %d samples: %.4f", each.samples, rows[-1][0])
    finally:
        engine.close()
    rows.sort(key=lambda row: (-row[0], row[1].step))
    for _, each, _ in rows[chosen.keep :]:
        shutil.rmtree(each.folder)
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


def _firsts(found: Evaluation) -> list[Any]:
    """Return the first score of every task."""
    return [found.score(task) for task in dict.fromkeys(score.task for score in found.scores)]


def _mean(found: Evaluation) -> float:
    """Return the mean over tasks; a metric that is better when lower counts as negative."""
    first = _firsts(found)
    total: float = sum(each.value if each.higher_is_better else -each.value for each in first)
    return total / len(first)
