"""The observations of a run: a table with a row for each model, pair of experts, task and item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from ablations.runs.models import StudyModel
from ablations.runs.records import OBSERVATIONS_FILE, CellRecord, Run, TaskRecord
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.cells import Cell
from layerswap_method.errors import InputError

ROLES = ("task_expert", "language_expert", "seed")
"""Columns that tell the cells of a model apart; empty for a role that a model does not have."""

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


def read_observations(run: Run) -> pd.DataFrame:
    """Return the observations of every finished record of a run; see `OBSERVATIONS`.

    Raises:
        InputError: for a file of samples that is damaged or gone.
    """
    items_by_key: dict[str, pd.DataFrame] = {}
    frames = []
    stored = pd.read_parquet(run.path / OBSERVATIONS_FILE) if run.is_copy else None
    for cell, head in _members(run):
        for record in cell.tasks:
            if record.key not in items_by_key:
                items = _items(record) if stored is None else _stored(record, stored)
                items_by_key[record.key] = items
            frames.append(items_by_key[record.key].assign(**head))
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in OBSERVATIONS.items()})
    data = pd.concat(frames, ignore_index=True)[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))
    # A metric that is no share (perplexity, counts) in one record has no items in any: a mean over
    # the items of some records would stand for all.
    scores = [score for cell in run.cells for score in cell.scores]
    unbounded = {(s.task, s.metric, s.filter) for s in scores if not s.is_share}
    keys = zip(*(data[name] for name in SCORE), strict=True)
    return data[[key not in unbounded for key in keys]]


def _stored(record: TaskRecord, stored: pd.DataFrame) -> pd.DataFrame:
    """Return the items of one record from observations that were written."""
    rows = stored[(stored["weights"] == record.weights_key) & (stored["task"] == record.task)]
    return rows[[*SCORE, "item", "content", "value"]].drop_duplicates()


def head_of(model: StudyModel, cell: Cell, names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that describe a cell."""
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


def _members(run: Run) -> Iterator[tuple[CellRecord, dict[str, str]]]:
    """Yield the finished cells of every model, with the roles that matter."""
    finished = {cell.label: cell for cell in run.cells}
    for model in run.models:
        cells = [finished[label] for label in model.cells if label in finished]
        columns = [*CELL, "kind", "cell", "weights", "base", "language"]
        heads = [head_of(model, cell, run.names) for cell in cells]
        rows = pd.DataFrame(heads, columns=columns, dtype="str")
        # A merge that takes nothing of an expert is one model with all experts of that role.
        for role in ROLES:
            other_columns = [name for name in (*ROLES, "language") if name != role]
            groups = rows.groupby(other_columns)["weights"]
            if (groups.size() > 1).any() and (groups.nunique() == 1).all():
                rows[role] = ""
        for at, row in rows.drop_duplicates([*ROLES, "language"]).iterrows():
            yield cells[at], {str(name): str(value) for name, value in row.items()}


def _items(record: TaskRecord) -> pd.DataFrame:
    """Return the items of one record, with their values averaged over repeats."""
    rows = [
        (
            sample.task,
            metric,
            sample.filter,
            sample.doc_id,
            sample.repeat,
            f"{sample.doc_hash[:12]}/{sample.prompt_hash[:12]}",
            value,
        )
        for sample in record.samples()
        for metric, value in sample.values.items()
    ]
    data = pd.DataFrame(rows, columns=[*SCORE, "item", "repeat", "content", "value"])
    scores = {(s.task, s.metric, s.filter): s for s in record.evaluation.scores}
    parts = [data.iloc[:0].astype({"value": "float64"})]
    for (task, metric, filter_name, _), part in data.groupby([*SCORE, "repeat"], sort=False):
        score = scores.get((task, metric, filter_name))
        pairs = [value for value in part["value"] if isinstance(value, tuple)]
        if pairs:
            corpus = corpus_metric(metric, None if score is None else score.signature)
            if corpus is None:
                continue
            counts = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
            part = part.assign(value=pseudo_values(counts.astype(np.float64), corpus.score))
        parts.append(part.astype({"value": "float64"}))
    whole = pd.concat([part for part in parts if len(part)] or parts)
    values = whole.groupby([*SCORE, "item", "content"], sort=False)["value"]
    # An item counts where all repeats of it are there.
    return values.mean()[values.size() == data["repeat"].nunique()].reset_index()


def check_same_content(data: pd.DataFrame) -> None:
    """Check that all models were evaluated on the same text, item by item.

    Raises:
        InputError: naming the task and two models.
    """
    for task, part in data.groupby("task", sort=False):
        contents = part.groupby("item")["content"].nunique()
        if (contents <= 1).all():
            continue
        item = contents[contents > 1].index[0]
        models = part[part["item"] == item].drop_duplicates("content")["model"].tolist()
        raise InputError(
            f"{models[0]} and {models[1]} have different items or prompts of {task} (the first is "
            f"item {item}); evaluate both with the same --limit, data and task files"
        )
