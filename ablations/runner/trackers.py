"""Scores of finished cells, sent to wandb or trackio.

Both have the same three calls. A cell is a run of the tracker, in the project of its study. Where
the runs go is up to the tracker's own settings (WANDB_MODE=offline, TRACKIO_DIR).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ablations.machine.fingerprint import fingerprint_of
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

TrackerName = Literal["wandb", "trackio"]


def tracker(name: TrackerName) -> Callable[..., None]:
    """Return what sends the scores of a cell, given by task, with ``facts`` for the run's config.

    The same cell with the same facts is the same run. A tracker that fails stops no study.

    Raises:
        InputError: where the tracker is not installed.
    """
    try:
        library = importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"--track {name}: {name} cannot be imported ({error}); pip install 'layerswap[{name}]'"
        ) from error

    def show(cell: Cell, evaluations: Mapping[str, Evaluation], facts: Mapping[str, Any]) -> None:
        scores: dict[str, float] = {}
        for score in (score for evaluation in evaluations.values() for score in evaluation.scores):
            place = f"{score.task}/{score.metric},{score.filter}".removesuffix(",none")
            scores[place] = score.value
            if score.interval is not None:
                scores |= {f"{place}/low": score.interval.low, f"{place}/high": score.interval.high}
        if not scores:
            return
        key = fingerprint_of(label=cell.label, weights=cell.weights_key, **facts)[:12]
        if name == "wandb":
            settings = library.Settings(silent=True, console="off")
            own = {"name": cell.label, "id": key, "settings": settings}
        else:  # it knows a run by its name alone
            own = dict.fromkeys(("embed", "auto_log_gpu", "auto_log_cpu"), False)
            own["name"] = f"{cell.label} {key}"
        config = {**cell.facts(), "weights_key": cell.weights_key, **facts}
        study = facts["study"]
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # scores stand there, not addresses
                library.init(project=study, group=study, resume="allow", config=config, **own)
                library.log(scores)
                library.finish()
        except Exception as error:  # a tracker is no reason to lose an evaluation
            logger.warning("  %s: %s did not take its scores: %s", cell.label, name, error)

    return show
