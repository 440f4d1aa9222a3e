"""The observations of a run: a table with a row for each model, pair of experts, task and item."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ablations.runs.records import CellRecord, TaskRecord
from ablations.scoring.evaluation import Sample, TaskScore
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.cells import Cell
from ablations.study.grouping import StudyModel

CELL_ROLES = ("task_expert", "language_expert", "seed")
"""Columns that tell the cells of a model apart; empty for a role that a model does not have."""

CELL = ("model", *CELL_ROLES)

SCORE = ("task", "metric", "filter")

ITEM = (*SCORE, "item", "content", "value")
"""Columns of the items of a record."""

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


def observations_of(
    models: Sequence[StudyModel], cells: Sequence[CellRecord], items: Iterable[pd.DataFrame]
) -> pd.DataFrame:
    """Return the observations of the cells of models; see `OBSERVATIONS`.

    Args:
        models: of a run.
        cells: its cells that have a record.
        items: of their records, as `items_of_record` returns them.
    """
    heads = [
        {**head, "task": record.task, "record": record.weights_key}
        for cell, head in _members(models, cells)
        for record in cell.task_records
    ]
    items = [frame for frame in items if len(frame)]
    if not heads or not items:
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in OBSERVATIONS.items()})
    joined = pd.concat(items).rename(columns={"weights": "record"})
    data = pd.DataFrame(heads).merge(joined, on=["record", "task"])
    data = data[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))
    scores = [score for cell in cells for score in cell.scores]
    return without_unbounded(data, {(s.task, s.metric, s.filter) for s in scores if not s.is_share})


def without_unbounded(
    data: pd.DataFrame, unbounded: Collection[tuple[str, str, str]]
) -> pd.DataFrame:
    """Return observations without those of scores that are no shares (perplexity, counts).

    If a score is none in one record, its items are left out of all: a mean over those of some
    records would stand for all.

    Args:
        data: of one or several runs.
        unbounded: task, metric and filter of every score that is no share in a record of them.
    """
    return data[~pd.MultiIndex.from_frame(data[[*SCORE]]).isin(unbounded)]


def head_of(model: StudyModel, cell: Cell) -> dict[str, str]:
    """Return the columns that describe a cell."""
    return {
        "model": model.label,
        "kind": model.kind,
        "cell": cell.label,
        "weights": cell.weights_key,
        "base": cell.experts.get("base", "") if "base" in model.pools else "",
        "task_expert": cell.experts.get("task", ""),
        "language_expert": cell.experts.get("language", ""),
        "seed": str(cell.values.get("seed", "")),
        "language": cell.language or "",
    }


def _members(
    models: Sequence[StudyModel], cells: Sequence[CellRecord]
) -> Iterator[tuple[CellRecord, dict[str, str]]]:
    """Yield the cells with a record of every model, with the roles that matter."""
    recorded = {cell.label: cell for cell in cells}
    for model in models:
        members = [recorded[label] for label in model.cells if label in recorded]
        columns = [*CELL, "kind", "cell", "weights", "base", "language"]
        heads = [head_of(model, cell) for cell in members]
        rows = pd.DataFrame(heads, columns=columns, dtype="str")
        # A merge that takes nothing of an expert is one model with all experts of that role.
        for role in CELL_ROLES:
            other_columns = [name for name in (*CELL_ROLES, "language") if name != role]
            groups = rows.groupby(other_columns)["weights"]
            if (groups.size() > 1).any() and (groups.nunique() == 1).all():
                rows[role] = ""
        for at, row in rows.drop_duplicates([*CELL_ROLES, "language"]).iterrows():
            yield members[at], {str(name): str(value) for name, value in row.items()}


def items_of_record(record: TaskRecord, samples: Iterable[Sample]) -> pd.DataFrame:
    """Return the items of a record: the columns of `ITEM`, and ``weights``."""
    return items_of(samples, record.evaluation.scores).assign(weights=record.weights_key)


def items_of(samples: Iterable[Sample], scores: Sequence[TaskScore]) -> pd.DataFrame:
    """Return the items of a record, with their values averaged over repeats.

    The columns are `ITEM`.
    """
    names = list(ITEM[:-1])
    columns: dict[str, list[Any]] = {name: [] for name in names}
    values = list[npt.NDArray[np.float64]]()
    groups = _values_by_score(samples)
    by_name = {(s.task, s.metric, s.filter): s for s in scores}
    for (*score, _), group in groups.items():
        task, metric, filter_name = score
        numbers = _numbers(group.values, metric, by_name.get((task, metric, filter_name)))
        if numbers is None:
            continue
        values.append(numbers)
        for name, value in zip(SCORE, score, strict=True):
            columns[name] += [value] * len(numbers)
        columns["item"] += group.items
        columns["content"] += group.contents
    data = pd.DataFrame(columns | {"value": np.concatenate(values) if values else []})
    groupby = data.groupby(names, sort=False)["value"]
    # An item counts where all repeats of it are there.
    is_whole = groupby.size().to_numpy() == len({repeat for *_, repeat in groups})
    return groupby.mean().reset_index()[is_whole]


class _Values(NamedTuple):
    """The values of a score in one repeat, with the items and contents that they are of."""

    items: list[int]
    contents: list[str]
    values: list[Any]


def _values_by_score(samples: Iterable[Sample]) -> dict[tuple[str, str, str, int], _Values]:
    """Return task, metric, filter and repeat -> values of the samples of a record."""
    groups: dict[tuple[str, str, str, int], _Values] = {}
    for sample in samples:
        content = f"{sample.doc_hash[:12]}/{sample.prompt_hash[:12]}"
        for metric, value in sample.values.items():
            key = (sample.task, metric, sample.filter, sample.repeat)
            group = groups.setdefault(key, _Values([], [], []))
            group.items.append(sample.doc_id)
            group.contents.append(content)
            group.values.append(value)
    return groups


def _numbers(
    values: Sequence[Any], metric: str, score: TaskScore | None
) -> npt.NDArray[np.float64] | None:
    """Return values as numbers, pairs of texts as pseudo-values; None where none are known."""
    pairs = [value for value in values if isinstance(value, tuple)]
    if not pairs:
        return np.array(values, dtype=np.float64)
    corpus = corpus_metric(metric, None if score is None else score.signature)
    if corpus is None:
        return None
    counts = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
    return pseudo_values(counts.astype(np.float64), corpus.score)
