"""Scores of a study for the trackers that transformers logs training to: W&B, MLflow and others.

transformers' own callbacks do it, told that each model is a trial of a search: those of W&B,
TensorBoard and Comet know trials, and every other one gets a run for each model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from ablations.runner.jobs import ShowCell
from ablations.scoring.evaluation import Evaluation
from ablations.study.cells import Cell
from layerswap_method.errors import InputError, first_line

logger = logging.getLogger(__name__)


class _CellFacts(TrainingArguments):  # type: ignore[misc]
    """The settings of a run as a callback is to show them: the facts of a cell, and none of ours.

    The values that callbacks read besides are transformers' defaults. The real constructor would
    choose a device for the whole process.
    """

    def __init__(self, study: str, out: Path, cell: Cell) -> None:
        self.output_dir, self.run_name = str(out), cell.label
        self._facts = {
            "study": study,
            "model": cell.label,
            "kind": cell.kind,
            **cell.experts,
            **cell.values,
        }

    def to_dict(self) -> dict[str, Any]:
        return dict(self._facts)

    def to_json_string(self) -> str:
        return json.dumps(self._facts, indent=2)


def score_trackers(names: Sequence[str], study: str, out: Path) -> ShowCell:
    """Return what logs the scores of a cell to trackers, by the names of ``report_to``.

    Raises:
        InputError: for a tracker that transformers does not know, or that is not installed.
    """
    for name in names:
        try:
            for make in get_reporting_integration_callbacks([name]):
                make()
        except (ImportError, RuntimeError, ValueError) as error:
            raise InputError(f"--report-to {name}: {first_line(error)}") from error

    def log(cell: Cell, evaluations: Mapping[str, Evaluation]) -> None:
        scores = score_values(evaluations)
        # A slash would make a folder of TensorBoard's.
        trial = cell.label.replace("/", "-")
        for name in names:
            # One for each model: some begin a run once in their life.
            for make in get_reporting_integration_callbacks([name]):
                callback, facts = make(), _CellFacts(study, out, cell)
                state = TrainerState(is_hyper_param_search=True, trial_name=trial)
                control = TrainerControl()
                try:
                    callback.on_train_begin(facts, state, control)
                    callback.on_log(facts, state, control, logs=dict(scores))
                    callback.on_train_end(facts, state, control)
                except Exception as error:  # of another's server; the scores are in the run folder
                    logger.warning(
                        "%s: the scores of %s could not be logged: %s",
                        name,
                        cell.label,
                        first_line(error),
                    )

    return log


def score_values(evaluations: Mapping[str, Evaluation]) -> dict[str, float]:
    """Return name -> score; trackers show ``eval_TASK/METRIC`` as TASK/METRIC among evaluations."""
    values = dict[str, float]()
    for evaluation in evaluations.values():
        for score in evaluation.scores:
            metric = score.metric
            if score.filter != "none":
                metric = f"{metric},{score.filter}"  # as lm-eval writes it
            values[f"eval_{score.task}/{metric}"] = score.value
    return values
