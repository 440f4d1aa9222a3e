"""Scores of finished cells, sent to wandb or trackio. Evaluates nothing.

Both have the same three calls. A cell is a run of the tracker, in the project and group of its
study, so that the tracker's own table compares cells. Where the runs go, and whether anything
leaves this machine, is up to the tracker's own settings (WANDB_MODE=offline, TRACKIO_DIR).
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
"""What scores may be sent to."""


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
        """Send the scores of a cell as one run of the tracker.

        A cell that ended before with fewer tasks is the same run, which goes on.

        Args:
            cell: that has ended.
            evaluations: task -> its evaluation.
            facts: what else the run's config says, `study` among them.
        """
        scores = metrics(evaluations)
        if not scores:
            return
        study = str(facts["study"])
        # The same cell is the same run only in the same run folder and under the same protocol.
        key = fingerprint_of(label=cell.label, weights=cell.weights_key, **facts)[:12]
        given: dict[str, Any] = {
            "project": study,
            "group": study,
            "config": {**config_of(cell), **facts},
            "resume": "allow",
        }
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
    """Return ``TASK/METRIC`` -> score, with the ends of its interval as ``.../low`` and ``/high``.

    The filter stands in the name (``TASK/METRIC,FILTER``) where a task has several.
    """
    found: dict[str, float] = {}
    for evaluation in evaluations.values():
        for score in evaluation.scores:
            same = [
                s for s in evaluation.scores if (s.task, s.metric) == (score.task, score.metric)
            ]
            name = f"{score.task}/{score.metric}" + (f",{score.filter}" if len(same) > 1 else "")
            found[name] = score.value
            if score.interval is not None:
                found |= {f"{name}/low": score.interval.low, f"{name}/high": score.interval.high}
    return found


def config_of(cell: Cell) -> dict[str, Any]:
    """Return what a cell is, as plain values: kind, experts, settings and layers."""
    return {
        "cell": cell.label,
        "kind": cell.kind,
        "language": cell.language,
        **{f"experts.{role}": name for role, name in cell.experts.items()},
        **{name: list(v) if isinstance(v, tuple) else v for name, v in cell.values.items()},
        "layers": None if cell.plan is None else " ".join(cell.plan.sources),
        "weights_key": cell.weights_key,
    }
