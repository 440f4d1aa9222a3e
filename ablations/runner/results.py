"""The scores of a run folder as a table, with those of earlier calls."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from ablations.machine.names import spreadsheet_text
from ablations.machine.whole_files import write_text
from ablations.runner.records import Run, TaskRecord, is_finished, load_run, read_record

SCORES_FILE = "scores.csv"


def latest_records(run: Run) -> dict[str, dict[str, TaskRecord]]:
    """Return cell -> task -> record, with the scores of earlier calls too.

    Those are of the same weights under the same protocol; the tasks of the plan come first.
    """
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


def write_scores(path: Path) -> None:
    """Write the scores of every cell as a table; see `latest_records`."""
    run, text = load_run(path), io.StringIO()
    known = latest_records(run)
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
