"""What a run folder shows a reader: a table of scores, and the observations, one row an item.

With `run.json`, observations.parquet is all that a report needs: its schema has the records in it.
"""

from __future__ import annotations

import base64
import csv
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ablations.machine.names import spreadsheet_text
from ablations.machine.whole_files import write_bytes, write_text
from ablations.runner.records import (
    HEADS,
    OBSERVATIONS_FILE,
    CellRecord,
    Run,
    TaskRecord,
    is_finished,
    load_run,
    read_record,
)
from ablations.statistics.corpus import corpus_metric, pseudo_values
from ablations.study.cells import Cell
from ablations.study.labels import Model, cell_names, models_of

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


def latest_records(run: Run) -> dict[str, dict[str, TaskRecord]]:
    """Return cell -> task -> record, with the scores of earlier calls too.

    Those are of the same weights under the same protocol; the tasks of the plan come first.
    """
    if run.is_copy:
        return {cell.label: {task.task: task for task in cell.tasks} for cell in run.cells}
    others: dict[str, list[TaskRecord]] = {}
    for file in (run.path / "records").glob("[!.]*.jsonl"):
        if is_finished(run.path, file.stem):  # else it is evaluated again when it is asked for
            record = read_record(run.path, file.stem)
            if record is not None and record.protocol == run.head.protocol:
                others.setdefault(record.weights_key, []).append(record)
    found = {}
    for cell in run.head.cells:
        known = others.get(cell.weights_key, [])
        known = sorted(known, key=lambda r: str(r.provenance.get("finished", "")))
        latest = {record.task: record for record in known}
        latest |= {record.task: record for record in known if record.key in cell.records.values()}
        order = dict.fromkeys((*cell.records, *latest))
        found[cell.label] = {task: latest[task] for task in order if task in latest}
    return found


def write_results(path: Path) -> None:
    """Write the scores of every cell and all observations of a run folder."""
    run = load_run(path)
    _write_scores(run)
    _write_observations(run)


def _write_scores(run: Run) -> None:
    path, text, known = run.path, io.StringIO(), latest_records(run)
    fields = ("task", "metric", "filter", "value", "low", "high", "stderr", "n")
    head = ("cell", "kind", "weights", *fields, "num_fewshot", "task_version", "backend", "record")
    table = csv.DictWriter(text, head, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for cell in run.head.cells:
        for task, record in known[cell.label].items():
            evaluation = record.evaluation
            for score in evaluation.scores:
                interval = {} if score.interval is None else dict(score.interval)
                row = {**interval, **dict(score), "cell": cell.label, "kind": cell.kind}
                row |= {"weights": cell.weights_key, "backend": evaluation.backend}
                row["num_fewshot"] = evaluation.num_fewshot.get(task)
                row["task_version"] = evaluation.task_versions.get(task)
                row["record"] = record.path.relative_to(path).as_posix()
                texts = {k: spreadsheet_text(v) for k, v in row.items() if isinstance(v, str)}
                table.writerow({**row, **texts})
    write_text(path / SCORES_FILE, text.getvalue())


def _write_observations(run: Run) -> None:
    """Write the observations of a run, with its records, as parquet."""
    import pyarrow as pa
    import pyarrow.parquet

    records = {task.key: task for cell in run.cells for task in cell.tasks}
    heads = "\n".join(r.model_dump_json(exclude_defaults=True) for r in records.values())
    table = pa.Table.from_pandas(read_observations(run), preserve_index=False)
    packed = base64.b64encode(zlib.compress(heads.encode()))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), HEADS: packed})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    write_bytes(run.path / OBSERVATIONS_FILE, file.getvalue())


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
    return pd.concat(frames, ignore_index=True)[list(OBSERVATIONS)].astype(dict(OBSERVATIONS))


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
