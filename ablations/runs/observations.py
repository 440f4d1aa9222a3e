"""The observations of a run: a table with a row for each model, pair of experts, task and item."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ablations.runs.records import CellRecord, Run, TaskRecord, written_observations
from ablations.scoring.evaluation import Sample, TaskScore
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.cells import Cell
from ablations.study.grouping import StudyModel

CELL_ROLES = ("task_expert", "language_expert", "seed")
"""Columns that tell the cells of a model apart; empty for a role that a model does not have."""

CELL = ("model", *CELL_ROLES)

SCORE = ("task", "metric", "filter")

RecordId = tuple[str, str]
"""Key and task of a record; in a copy of a run, which has one for each, key of the weights."""

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
    records: dict[RecordId, TaskRecord] = {}
    uses = list[tuple[dict[str, str], RecordId]]()
    for cell, head in _members(run):
        for record in cell.tasks:
            name = (record.weights_key if run.is_copy else record.key, record.task)
            records[name] = record
            uses.append((head, name))
    if run.is_copy:
        items = _written_items(records, written_observations(run.path))
    else:
        items = items_of((one.samples(), one.evaluation.scores) for one in records.values())
    if not len(items):
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in OBSERVATIONS.items()})
    numbers = {name: number for number, name in enumerate(records)}
    heads = pd.DataFrame([{**head, "record": numbers[name]} for head, name in uses])
    data = heads.merge(items, on="record")[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))
    # A metric that is no share (perplexity, counts) in one record has no items in any: a mean over
    # the items of some records would stand for all.
    scores = [score for cell in run.cells for score in cell.scores]
    unbounded = {(s.task, s.metric, s.filter) for s in scores if not s.is_share}
    return data[~pd.MultiIndex.from_frame(data[[*SCORE]]).isin(unbounded)]


def _written_items(records: Collection[RecordId], written: pd.DataFrame) -> pd.DataFrame:
    """Return the items of records from observations that were written; see `items_of`."""
    columns = ["record", *SCORE, "item", "content", "value"]
    if not records:
        return pd.DataFrame(columns=columns)
    index = pd.MultiIndex.from_tuples(records, names=["weights", "task"])
    numbers = index.get_indexer(pd.MultiIndex.from_frame(written[index.names]))
    items = written.assign(record=numbers)[numbers >= 0][columns]
    return items.drop_duplicates().sort_values("record", kind="stable")


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


def _members(run: Run) -> Iterator[tuple[CellRecord, dict[str, str]]]:
    """Yield the cells with a record of every model, with the roles that matter."""
    recorded = {cell.label: cell for cell in run.cells}
    for model in run.models:
        cells = [recorded[label] for label in model.cells if label in recorded]
        columns = [*CELL, "kind", "cell", "weights", "base", "language"]
        heads = [head_of(model, cell) for cell in cells]
        rows = pd.DataFrame(heads, columns=columns, dtype="str")
        # A merge that takes nothing of an expert is one model with all experts of that role.
        for role in CELL_ROLES:
            other_columns = [name for name in (*CELL_ROLES, "language") if name != role]
            groups = rows.groupby(other_columns)["weights"]
            if (groups.size() > 1).any() and (groups.nunique() == 1).all():
                rows[role] = ""
        for at, row in rows.drop_duplicates([*CELL_ROLES, "language"]).iterrows():
            yield cells[at], {str(name): str(value) for name, value in row.items()}


def items_of(records: Iterable[tuple[Iterable[Sample], Sequence[TaskScore]]]) -> pd.DataFrame:
    """Return the items of records, with their values averaged over repeats.

    A record is its samples and their scores. Its items are together; ``record`` is its number.
    """
    names = ["record", *SCORE, "item", "content"]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    values, repeats = list[npt.NDArray[np.float64]](), list[int]()
    for number, (samples, scores_of_record) in enumerate(records):
        groups = _values_by_score(samples)
        scores = {(s.task, s.metric, s.filter): s for s in scores_of_record}
        repeats.append(len({repeat for *_, repeat in groups}))
        for (task, metric, filter_name, _), group in groups.items():
            score = (task, metric, filter_name)
            found = _numbers(group.values, metric, scores.get(score))
            if found is None:
                continue
            values.append(found)
            for name, value in zip(names, (number, *score), strict=False):
                columns[name] += [value] * len(found)
            columns["item"] += group.items
            columns["content"] += group.contents
    data = pd.DataFrame(columns | {"value": np.concatenate(values) if values else []})
    groupby = data.groupby(names, sort=False)["value"]
    means = groupby.mean().reset_index()
    # An item counts where all repeats of it are there.
    return means[groupby.size().to_numpy() == np.array(repeats)[means["record"]]]


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
