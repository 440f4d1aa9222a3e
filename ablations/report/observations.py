"""A run folder as tables: one row an item (observations) and one row a score.

Everything in a report is made from these two, and from the study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

from ablations.runner.records import CellRecord, PlannedCell, Run, TaskRecord, read_failure
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.labels import Model, cell_names, models_of
from layerswap_method.errors import InputError, LayerSwapError, nearest

ROLES = ("task_expert", "language_expert", "seed")
"""Columns that tell the cells of a model apart; empty for what a model does not come from."""

CELL = ("model", *ROLES)

SCORE = ("task", "metric", "filter")

OBSERVATIONS: Mapping[str, str] = {
    "model": "str",
    "kind": "str",
    "cell": "str",
    "weights": "str",
    "base": "str",
    "task_expert": "str",
    "language_expert": "str",
    "seed": "str",
    "language": "str",
    "task": "str",
    "metric": "str",
    "filter": "str",
    "item": "int64",
    "content": "str",
    "value": "float64",
}
"""Columns of the observations. ``content``: hashes of item and prompt, equal where a model was
evaluated on the same text. ``value``: of the item, averaged over repeats; their mean is the score.
Items of a corpus metric (BLEU) have jackknife pseudo-values."""


def read_observations(run: Run, models: Sequence[Model] | None = None) -> pd.DataFrame:
    """Return the observations of every finished record of a run; see `OBSERVATIONS`.

    Raises:
        InputError: for a file of samples that is damaged or gone.
    """
    items: dict[str, pd.DataFrame] = {}
    frames = []
    for cell, head in _members(run, models_of(run.head) if models is None else models):
        for record in cell.tasks:
            if record.key not in items:
                items[record.key] = _items(record)
            frames.append(items[record.key].assign(**head))
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in OBSERVATIONS.items()})
    return pd.concat(frames, ignore_index=True)[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))


def read_scores(run: Run, models: Sequence[Model] | None = None) -> pd.DataFrame:
    """Return a row for every score of every cell, and one for each task without a record.

    ``state`` is ``done``, ``failed`` or ``missing``; the reason of a failure is in ``reason``.
    """
    names = cell_names(run.head)
    finished = {cell.label: cell for cell in run.cells}
    rows: list[dict[str, Any]] = []
    for model in models_of(run.head) if models is None else models:
        for planned in run.head.cells:
            if planned.label not in model.cells:
                continue
            head = _head(model, planned, names)
            cell = finished.get(planned.label)
            records = {} if cell is None else {record.task: record for record in cell.tasks}
            for task, key in planned.records.items():
                record = records.get(task)
                if record is not None:
                    rows += [{**head, **score} for score in _scores(record)]
                    continue
                failure = read_failure(run.path, key)
                reason = "" if failure is None else (failure.error.splitlines() or [""])[0]
                state = "missing" if failure is None else "failed"
                rows.append({**head, "task": task, "state": state, "reason": reason})
    return pd.DataFrame(rows)


def shown_scores(scores: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return a row a task: the metric and filter that its tables show, by task.

    Args:
        scores: from `read_scores`.
        metric: what to show of tasks that have it; the first metric of the others.
    """
    done = scores[scores["state"] == "done"]
    wanted = done[done["metric"] == metric] if metric is not None else done.iloc[:0]
    columns = [*SCORE, "higher_is_better", "is_share", "floor", "floor_name"]
    return pd.concat([wanted, done])[columns].drop_duplicates("task").set_index("task", drop=False)


@contextmanager
def reading() -> Iterator[None]:
    """Raise what is wrong with the files of a run, whose folder the user named, as `InputError`."""
    try:
        yield
    except LayerSwapError as error:
        raise InputError(error.message) from error


def check_same_content(data: pd.DataFrame) -> None:
    """Check that all models were evaluated on the same text, item by item.

    Raises:
        InputError: naming the task and two models.
    """
    for task, part in data.groupby("task", sort=False):
        by_item = part.groupby("item")["content"].nunique()
        if (by_item <= 1).all():
            continue
        item = by_item[by_item > 1].index[0]
        first = part[part["item"] == item].drop_duplicates("content")["model"].tolist()
        raise InputError(
            f"{first[0]} and {first[1]} have different items or prompts of {task} (the first is "
            f"item {item}); evaluate both with the same --limit, data and task files"
        )


def check_names(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Check that every name is known.

    Raises:
        InputError: with the nearest valid name.
    """
    for name in names:
        if name not in known:
            raise InputError(f"{what} {name!r} is not in the run{nearest(name, known)}")


def _head(model: Model, cell: PlannedCell, names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that tell what a cell is."""
    return {
        "model": model.label,
        "kind": model.kind,
        "cell": names[cell.label],
        "weights": cell.weights_key,
        "base": cell.experts.get("base", "") if "base" in model.pools else "",
        "task_expert": cell.experts.get("task", ""),
        "language_expert": cell.experts.get("language", ""),
        "seed": str(cell.values.get("seed", "")),
        "language": cell.language or "",
    }


def _members(run: Run, models: Sequence[Model]) -> Iterator[tuple[CellRecord, dict[str, str]]]:
    """Yield the finished cells of every model, with the roles that matter."""
    names = cell_names(run.head)
    finished = {cell.label: cell for cell in run.cells}
    for model in models:
        cells = [finished[label] for label in model.cells if label in finished]
        columns = [*CELL, "kind", "cell", "weights", "base", "language"]
        heads = [_head(model, cell, names) for cell in cells]
        rows = pd.DataFrame(heads, columns=columns, dtype="str")
        # A merge that takes nothing of an expert is one model with all experts of that role.
        for role in ROLES:
            others = [name for name in (*ROLES, "language") if name != role]
            groups = rows.groupby(others)["weights"]
            if (groups.size() > 1).any() and (groups.nunique() == 1).all():
                rows[role] = ""
        for at, row in rows.drop_duplicates([*ROLES, "language"]).iterrows():
            yield cells[at], {str(name): str(value) for name, value in row.items()}


def _items(record: TaskRecord) -> pd.DataFrame:
    """Return the items of one record, with their values averaged over repeats."""
    rows = [
        (
            *(sample.task, metric, sample.filter, sample.doc_id, sample.repeat),
            f"{sample.doc_hash[:12]}/{sample.prompt_hash[:12]}",
            value,
        )
        for sample in record.samples()
        for metric, value in sample.values.items()
    ]
    columns = [*SCORE, "item", "repeat", "content", "value"]
    data = pd.DataFrame(rows, columns=columns)
    scores = {(s.task, s.metric, s.filter): s for s in record.evaluation.scores}
    parts = []
    for key, part in data.groupby([*SCORE, "repeat"], sort=False):
        score = scores.get(key[:3])
        pairs = [value for value in part["value"] if isinstance(value, tuple)]
        if pairs:
            corpus = corpus_metric(key[1], None if score is None else score.signature)
            if corpus is None:
                continue
            counts = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
            part = part.assign(value=pseudo_values(counts.astype(np.float64), corpus.score))
        elif score is not None and not score.is_share:  # perplexity is no mean over items
            continue
        parts.append(part.astype({"value": "float64"}))
    if not parts:
        return data.iloc[:0].drop(columns="repeat")
    keys = [*SCORE, "item", "content"]
    whole = pd.concat(parts).groupby(keys, sort=False, as_index=False)["value"].mean()
    repeats = data["repeat"].nunique()
    if repeats > 1:  # an item counts where all repeats of it are there
        sizes = pd.concat(parts).groupby(keys, sort=False)["value"].size().to_numpy()
        whole = whole[sizes == repeats]
    return whole


def _scores(record: TaskRecord) -> Iterator[dict[str, Any]]:
    for score in record.evaluation.scores:
        yield {
            "task": score.task,
            "state": "done",
            "metric": score.metric,
            "filter": score.filter,
            "value": score.value,
            "low": None if score.interval is None else score.interval.low,
            "high": None if score.interval is None else score.interval.high,
            "stderr": score.stderr,
            "n": score.n,
            "higher_is_better": score.higher_is_better,
            "is_share": score.is_share,
            "floor": None if score.floor is None else score.floor.score,
            "floor_name": "" if score.floor is None else score.floor.name,
            "backend": record.evaluation.backend,
            "reason": "",
        }
