"""A model's scores as a card shows them: a table with notes, and the hub's `model-index`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.runner.records import CellRecord, Run, TaskRecord
from ablations.runner.run import FINGERPRINTS
from ablations.scoring.observed import OBSERVED
from ablations.scoring.records import TaskScore
from ablations.statistics.as_text import with_interval
from ablations.study.identity import Fingerprints
from ablations.tasks.catalog import list_tasks
from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.layer_swap_merge import read_plan
from layerswap_method.plan import describe_plan
from layerswap_method.recipe.references import named_models

if TYPE_CHECKING:
    from huggingface_hub import EvalResult


def cell_of(run: Run, model: Path, label: str | None) -> CellRecord:
    """Return the cell of a run that holds the scores of a model.

    Args:
        run: of `layerswap evaluate` or `layerswap run`.
        model: the model's folder.
        label: of the cell; None looks for the one that was read from `model`.

    Raises:
        InputError: where there is no such cell, with those that there are.
    """
    for cell in run.cells:
        read = {(run.path / name).resolve() for name in named_models(cell.merge)}
        if cell.label == label or (label is None and read == {model.resolve()}):
            return cell
    labels = [cell.label for cell in run.cells]
    listed = "; ".join(labels) or "none"
    if label is not None:
        raise InputError(
            f"{run.path}: no cell {label!r}{nearest(label, labels)}; finished are {listed}"
        )
    raise InputError(
        f"{run.path}: no cell was read from {model}; evaluate it (layerswap evaluate {model}), or "
        f"name the cell that merges the same: --cell LABEL, one of {listed}"
    )


def check_same_model(run: Run, cell: CellRecord, model: Path) -> None:
    """Check that the scores of a cell are of the model in a folder, as far as the run tells.

    A checkpoint that was evaluated as it is must have the same content still; of a merge in a study
    the layers must come from the same experts' roles.

    Raises:
        InputError: where they are not.
    """
    names = list(named_models(cell.merge))
    if len(names) == 1:
        known = Fingerprints(run.path / FINGERPRINTS)
        then = known.recorded(Path(os.path.normpath(run.path.absolute() / names[0])))
        if then is not None and known.of(model.resolve()) != then:
            raise InputError(
                f"{run.path}: the scores of {cell.label!r} are of other weights, config or "
                f"tokenizer than {model} holds now; evaluate it again: layerswap evaluate {model}"
            )
        return
    plan = read_plan(model)
    if plan is not None and cell.plan is not None and plan.sources != cell.plan.sources:
        raise InputError(
            f"{run.path}: the cell {cell.label!r} is another merge than {model}: it has "
            f"{describe_plan(cell.plan)}; the folder has {describe_plan(plan)}"
        )


def _shown(cell: CellRecord) -> list[tuple[TaskRecord, TaskScore]]:
    """Return the scores that a card shows: the tasks' own metrics, without observations."""
    pairs = [(record, score) for record in cell.tasks for score in record.evaluation.scores]
    return [(record, score) for record, score in pairs if score.metric not in OBSERVED]


def score_section(cell: CellRecord, run: Run) -> str:
    """Return the scores with intervals and protocol as a Markdown table, and notes on them."""
    protocols = {task.name: task.protocol for task in list_tasks()}
    lines = ["| task | metric | score | items | protocol |", "|---|---|---|---|---|"]
    for record, score in _shown(cell):
        value = with_interval(score.value, score.interval, score.is_share)
        protocol = protocols.get(score.task) or _protocol(record)
        lines.append(f"| `{score.task}` | {_metric(score)} | {value} | {score.n} | {protocol} |")
    first = cell.tasks[0].evaluation
    versions = ", ".join(f"{name} {version}" for name, version in sorted(first.versions.items()))
    intervals = [score.interval for _, score in _shown(cell) if score.interval is not None]
    notes = ["Scores are in percent where a metric is a share."]
    if intervals:
        level = f"{intervals[0].level:.0%}"
        notes[0] += f" An interval ({level}) is over the items of the task, not over trainings."
    notes.append(f"Evaluated by lm-eval on {cell.backend} with {versions}.")
    if (limit := run.study.evaluate.limit) is not None:
        notes.append(f"Only the first {limit} items of each task were used.")
    return "\n".join([*lines, "", *(f"- {note}" for note in dict.fromkeys((*notes, *cell.notes)))])


def model_index(cell: CellRecord) -> list[EvalResult]:
    """Return every shown score as huggingface_hub's `EvalResult`; shares in percent."""
    from huggingface_hub import EvalResult

    sources = {task.name: task.source for task in list_tasks()}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=sources.get(score.task, score.task),
            dataset_name=score.task,
            metric_type=score.metric,
            metric_name=_metric(score),
            metric_value=round(100 * score.value, 2) if score.is_share else round(score.value, 4),
        )
        for _, score in _shown(cell)
    ]


def _metric(score: TaskScore) -> str:
    return score.metric if score.filter == "none" else f"{score.metric} ({score.filter})"


def _protocol(record: TaskRecord) -> str:
    evaluation, task = record.evaluation, record.task
    shots = [f"{evaluation.num_fewshot[task]}-shot"] if task in evaluation.num_fewshot else []
    version = evaluation.task_versions.get(task)
    return ", ".join([*shots, *([f"version {version}"] if version else [])])
