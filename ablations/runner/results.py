"""`results.json` of a run folder: all scores by cell and task, to be read by people and scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ablations.machine.whole_files import write_text
from ablations.runner import records
from ablations.runner.versioned_files import SCHEMA_VERSION
from layerswap_method.errors import LayerSwapError

RESULTS_FILE = "results.json"


def latest_records(run: records.Run) -> dict[str, dict[str, records.TaskRecord]]:
    """Return cell -> task -> record, with the scores of earlier calls too.

    Those are of the same weights under the same protocol; the tasks of the plan come first.
    """
    others: dict[str, list[records.TaskRecord]] = {}
    for folder in (run.path / "records").glob("[!.]*"):
        try:
            record = records.read_record(run.path, folder.name)
        except LayerSwapError:  # it is evaluated again when it is asked for
            continue
        if record is not None and record.protocol == run.head.protocol:
            others.setdefault(record.weights_key, []).append(record)
    found = {}
    for cell in run.head.cells:
        known = sorted(
            others.get(cell.weights_key, ()), key=lambda r: r.provenance.get("finished", "")
        )
        latest = {record.task: record for record in known}
        latest |= {record.task: record for record in known if record.key in cell.records.values()}
        order = dict.fromkeys((*cell.records, *latest))
        found[cell.label] = {task: latest[task] for task in order if task in latest}
    return found


def write_results(path: Path) -> None:
    """Write the scores of every cell, with those of earlier calls; see `latest_records`."""
    run = records.load_run(path)
    known = latest_records(run)
    models = {
        cell.label: {
            **cell.model_dump(mode="json", exclude={"label", "records", "plan"}),
            "layers": cell.plan,
            "tasks": {task: _result(each, path) for task, each in known[cell.label].items()},
        }
        for cell in run.head.cells
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "study": run.study.name,
        "question": run.head.question,
        "experts": run.head.experts,
        "models": models,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_text(path / RESULTS_FILE, text)


def _result(record: records.TaskRecord, path: Path) -> dict[str, Any]:
    return {
        **record.evaluation.model_dump(mode="json", exclude={"samples", "skipped"}),
        "data_dir": record.provenance["request"]["data_dir"],
        "record": record.folder.relative_to(path).as_posix(),
    }
