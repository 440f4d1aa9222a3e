"""What a run folder shows a reader: a table of scores, and the observations, one row per item.

With `run.json`, observations.parquet is all that a report needs: its schema has the records in it.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ablations.machine.names import spreadsheet_text
from ablations.machine.whole_files import write_bytes, write_text
from ablations.runs.models import Model, cell_names, models_of
from ablations.runs.records import (
    HEADS,
    OBSERVATIONS_FILE,
    CellRecord,
    Run,
    TaskRecord,
    load_run,
)
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.cells import Cell

SCORES_FILE = "scores.csv"

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


def write_results(path: Path) -> None:
    """Write the scores of every cell and all observations of a run folder."""
    import pyarrow as pa
    import pyarrow.parquet

    run = load_run(path)
    write_text(path / SCORES_FILE, _scores(run).to_csv(index=False, lineterminator="\n"))
    records = {task.key: task for cell in run.cells for task in cell.tasks}
    heads = "\n".join(r.model_dump_json(exclude_defaults=True) for r in records.values())
    table = pa.Table.from_pandas(read_observations(run), preserve_index=False)
    packed = base64.b64encode(zlib.compress(heads.encode()))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), HEADS: packed})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    write_bytes(path / OBSERVATIONS_FILE, file.getvalue())


def _scores(run: Run) -> pd.DataFrame:
    rows = list[dict[str, Any]]()
    for cell in run.cells:
        row = {"cell": cell.label, "kind": cell.kind, "weights": cell.weights_key}
        for record in cell.tasks:
            evaluation = record.evaluation
            more = {
                "num_fewshot": evaluation.num_fewshot.get(record.task),
                "task_version": evaluation.task_versions.get(record.task),
                "backend": evaluation.backend,
                "record": record.path.relative_to(run.path).as_posix(),
            }
            for score in evaluation.scores:
                interval = {} if score.interval is None else dict(score.interval)
                rows.append({**row, **interval, **dict(score), **more})
    fields = ("task", "metric", "filter", "value", "low", "high", "stderr", "n")
    head = ("cell", "kind", "weights", *fields, "num_fewshot", "task_version", "backend", "record")
    table = pd.DataFrame(rows, columns=head, dtype="object")
    return table.map(lambda value: spreadsheet_text(value) if isinstance(value, str) else value)


def read_observations(run: Run, models: Sequence[Model] | None = None) -> pd.DataFrame:
    """Return the observations of every finished record of a run; see `OBSERVATIONS`.

    Raises:
        InputError: for a file of samples that is damaged or gone.
    """
    items: dict[str, pd.DataFrame] = {}
    frames = []
    stored = pd.read_parquet(run.path / OBSERVATIONS_FILE) if run.is_copy else None
    for cell, head in _members(run, models_of(run.head) if models is None else models):
        for record in cell.tasks:
            if record.key not in items:
                items[record.key] = _items(record) if stored is None else _stored(record, stored)
            frames.append(items[record.key].assign(**head))
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in OBSERVATIONS.items()})
    data = pd.concat(frames, ignore_index=True)[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))
    # What is no share in one record (perplexity, counts) has items of none: never those of some.
    keys = {(s.task, s.metric, s.filter) for c in run.cells for s in c.scores if not s.is_share}
    return data[[key not in keys for key in zip(*(data[n] for n in SCORE), strict=True)]]


def _stored(record: TaskRecord, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the items of one record from observations that were written."""
    own = rows[(rows["weights"] == record.weights_key) & (rows["task"] == record.task)]
    return own[[*SCORE, "item", "content", "value"]].drop_duplicates()


def head_of(model: Model, cell: Cell, names: Mapping[str, str]) -> dict[str, str]:
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
        heads = [head_of(model, cell, names) for cell in cells]
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
    keys = [*SCORE, "item", "content"]
    data = pd.DataFrame(rows, columns=[*SCORE, "item", "repeat", "content", "value"])
    scores = {(s.task, s.metric, s.filter): s for s in record.evaluation.scores}
    parts = [data.iloc[:0].astype({"value": "float64"})]
    for key, part in data.groupby([*SCORE, "repeat"], sort=False):
        score = scores.get(key[:3])
        pairs = [value for value in part["value"] if isinstance(value, tuple)]
        if pairs:
            corpus = corpus_metric(key[1], None if score is None else score.signature)
            if corpus is None:
                continue
            counts = corpus.counts([text for _, text in pairs], [gold for gold, _ in pairs])
            part = part.assign(value=pseudo_values(counts.astype(np.float64), corpus.score))
        parts.append(part.astype({"value": "float64"}))
    whole = pd.concat([part for part in parts if len(part)] or parts)
    values = whole.groupby(keys, sort=False)["value"]
    # An item counts where all repeats of it are there.
    return values.mean()[values.size() == data["repeat"].nunique()].reset_index()
