"""A model's scores as a card shows them: a table, `model-index`, and `.eval_results` entries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ablations.runner.records import CellRecord, Run, TaskRecord
from ablations.runner.run import FINGERPRINTS
from ablations.scoring.observed import OBSERVED
from ablations.scoring.records import TaskScore
from ablations.statistics.as_text import with_interval
from ablations.study.identity import Fingerprints
from ablations.tasks.catalog import Task, list_tasks
from layerswap_method.errors import InputError, nearest
from layerswap_method.methods.layer_swap_merge import read_plan
from layerswap_method.plan import describe_plan
from layerswap_method.recipe.references import named_models

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, EvalResultEntry


def cell_of(run: Run, model: Path, label: str | None) -> CellRecord:
    """Return the cell of a run that holds the scores of a model.

    Args:
        run: of `layerswap evaluate` or `layerswap run`.
        model: the model's folder.
        label: of the cell; None looks for the one that was read from `model`.

    Raises:
        InputError: where there is no such cell, with those that there are.
    """
    labels = [cell.label for cell in run.cells]
    if label is not None:
        for cell in run.cells:
            if cell.label == label:
                return cell
        raise InputError(
            f"{run.path}: no cell {label!r}{nearest(label, labels)}; finished are "
            f"{'; '.join(labels) or 'none'}"
        )
    for cell in run.cells:
        if {(run.path / name).resolve() for name in named_models(cell.merge)} == {model.resolve()}:
            return cell
    raise InputError(
        f"{run.path}: no cell was read from {model}; evaluate it (layerswap evaluate {model}), or "
        f"name the cell that merges the same: --cell LABEL, one of {'; '.join(labels) or 'none'}"
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


def shown(record: TaskRecord) -> list[TaskScore]:
    """Return the scores of a task that a card shows: its own metrics, without observations."""
    return [score for score in record.evaluation.scores if score.metric not in OBSERVED]


def score_table(cell: CellRecord) -> str:
    """Return the scores with intervals and protocol, as a Markdown table."""
    known = {task.name: task for task in list_tasks()}
    rows = ["| task | metric | score | items | protocol |", "|---|---|---|---|---|"]
    for record in cell.tasks:
        for score in shown(record):
            value = with_interval(score.value, score.interval, score.is_share)
            rows.append(
                f"| `{score.task}` | {_metric(score)} | {value} | {score.n} | "
                f"{_protocol(record, known)} |"
            )
    return "\n".join(rows)


def notes(cell: CellRecord, run: Run) -> list[str]:
    """Return what a reader of the table must know, as sentences."""
    first = cell.tasks[0].evaluation
    versions = ", ".join(f"{name} {version}" for name, version in sorted(first.versions.items()))
    levels = {s.interval.level for r in cell.tasks for s in shown(r) if s.interval is not None}
    said = [
        "Scores are in percent where a metric is a share. An interval "
        f"({', '.join(f'{level:.0%}' for level in sorted(levels))}) is over the items of the task, "
        "not over trainings."
        if levels
        else "Scores are in percent where a metric is a share.",
        f"Evaluated by lm-eval on {cell.backend} with {versions}.",
    ]
    if run.study.evaluate.limit is not None:
        said.append(f"Only the first {run.study.evaluate.limit} items of each task were used.")
    return [*said, *dict.fromkeys(cell.notes)]


def model_index(cell: CellRecord) -> list[EvalResult]:
    """Return every shown score as huggingface_hub's `EvalResult`; shares in percent."""
    from huggingface_hub import EvalResult

    known = {task.name: task for task in list_tasks()}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=known[score.task].source if score.task in known else score.task,
            dataset_name=score.task,
            metric_type=score.metric,
            metric_name=_metric(score),
            metric_value=_value(score),
        )
        for record in cell.tasks
        for score in shown(record)
    ]


def benchmark_ids(given: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return task -> (dataset id, task id) from ``TASK=OWNER/DATASET[:TASK_ID]``.

    Raises:
        InputError: for text of another form, or a task named twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for text in given:
        task, equals, rest = text.partition("=")
        dataset, _, task_id = rest.partition(":")
        if not (task and equals and dataset.count("/") == 1) or dataset.startswith("/"):
            raise InputError(f"--benchmark {text!r}: write TASK=OWNER/DATASET[:TASK_ID]")
        if task in found:
            raise InputError(f"--benchmark: {task} is named twice")
        found[task] = dataset, task_id or "default"
    return found


def result_files(cell: CellRecord, ids: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return file name -> content of `.eval_results`, one file a benchmark that is named.

    The first shown score of a task is its value.

    Raises:
        InputError: for a task that the cell has no score of.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    known = {task.name: task for task in list_tasks()}
    records = {record.task: record for record in cell.tasks}
    entries: dict[str, list[EvalResultEntry]] = {}
    for task, (dataset, task_id) in ids.items():
        if task not in records:
            raise InputError(
                f"--benchmark: {task} was not evaluated{nearest(task, records)}; evaluated were "
                f"{', '.join(records)}"
            )
        record, score = records[task], shown(records[task])[0]
        entry = EvalResultEntry(
            dataset_id=dataset,
            task_id=task_id,
            value=_value(score),
            date=str(record.provenance["finished"])[:10],
            notes=(
                f"{_metric(score)}, {with_interval(score.value, score.interval, score.is_share)}, "
                f"n={score.n}; {_protocol(record, known)}"
            ),
        )
        entries.setdefault(dataset, []).append(entry)
    return {
        f"{dataset.replace('/', '--')}.yaml": yaml.safe_dump(
            eval_result_entries_to_yaml(found), sort_keys=False, allow_unicode=True
        )
        for dataset, found in entries.items()
    }


def _metric(score: TaskScore) -> str:
    return score.metric if score.filter == "none" else f"{score.metric} ({score.filter})"


def _value(score: TaskScore) -> float:
    return round(100 * score.value, 2) if score.is_share else round(score.value, 4)


def _protocol(record: TaskRecord, known: Mapping[str, Task]) -> str:
    if record.task in known:
        return known[record.task].protocol
    return ", ".join(_stated(record))


def _stated(record: TaskRecord) -> Iterator[str]:
    evaluation: Any = record.evaluation
    if record.task in evaluation.num_fewshot:
        yield f"{evaluation.num_fewshot[record.task]}-shot"
    if version := evaluation.task_versions.get(record.task):
        yield f"version {version}"
