"""Scores of finished cells, sent to wandb or trackio.

Both have the same three calls. A cell is a run of the tracker, in the project and group of its
study, so that the tracker's own table compares cells. Where the runs go is up to the tracker's own
settings (WANDB_MODE=offline, TRACKIO_DIR).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from collections.abc import Mapping
from typing import Any, Literal

from ablations.machine.fingerprint import fingerprint_of
from ablations.scoring.records import Evaluation
from ablations.study.cells import Cell
from layerswap_method.errors import InputError

logger = logging.getLogger(__name__)

TrackerName = Literal["wandb", "trackio"]


class Tracker:
    """Sends the scores of cells to a tracker; a tracker that fails does not stop the study."""

    def __init__(self, name: TrackerName):
        """Import the tracker.

        Raises:
            InputError: where it is not installed.
        """
        try:
            self._library = importlib.import_module(name)
        except ImportError as error:
            raise InputError(
                f"--track {name}: {name} cannot be imported ({error}); "
                f"pip install 'layerswap[{name}]'"
            ) from error
        self._name = name

    def show(
        self, cell: Cell, evaluations: Mapping[str, Evaluation], facts: Mapping[str, Any]
    ) -> None:
        """Send the scores of a cell; one that ended before with fewer tasks is the same run.

        Args:
            cell: that has ended.
            evaluations: task -> its evaluation.
            facts: what else the run's config says, `study` among them.
        """
        scores = metrics(evaluations)
        if not scores:
            return
        # The same cell is the same run only in the same run folder and under the same protocol.
        key = fingerprint_of(label=cell.label, weights=cell.weights_key, **facts)[:12]
        given = {"project": facts["study"], "group": facts["study"], "resume": "allow"}
        given["config"] = {**cell.facts(), "weights_key": cell.weights_key, **facts}
        if self._name == "wandb":
            settings = self._library.Settings(silent=True, console="off")
            given |= {"id": key, "name": cell.label, "settings": settings}
        else:  # it knows a run by its name alone
            given |= {"name": f"{cell.label} {key}", "auto_log_gpu": False, "auto_log_cpu": False}
            given["embed"] = False
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # scores stand there, not addresses
                self._library.init(**given)
                self._library.log(scores)
                self._library.finish()
        except Exception as error:  # a tracker is no reason to lose an evaluation
            logger.warning("  %s: %s did not take its scores: %s", cell.label, self._name, error)


def metrics(evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    """Return ``TASK/METRIC,FILTER`` -> score, and ``.../low`` and ``/high`` of its interval."""
    found: dict[str, float] = {}
    for score in (score for each in evaluations.values() for score in each.scores):
        name = f"{score.task}/{score.metric},{score.filter}".removesuffix(",none")
        found[name] = score.value
        if score.interval is not None:
            found |= {f"{name}/low": score.interval.low, f"{name}/high": score.interval.high}
    return found
