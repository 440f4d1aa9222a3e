"""Evaluations on disk: one folder each, whole or absent. Knows files; computes no score.

FOLDER/evaluation.json      scores, versions, fingerprint of what they depend on
FOLDER/samples_TASK.jsonl   one record per item and filter
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from ablations.machine.json_lines import read_lines
from ablations.machine.whole_files import replaced_folder
from ablations.scoring.records import Evaluation, Sample

SCHEMA_VERSION = 1
_FILE = "evaluation.json"


def write_evaluation(folder: Path, evaluation: Evaluation, *, fingerprint: str) -> None:
    """Write `evaluation` to `folder`, in place of what is there."""
    with replaced_folder(folder) as fresh:
        tasks = list(dict.fromkeys(sample.task for sample in evaluation.samples))
        for task in tasks:
            lines = [sample.model_dump_json() for sample in evaluation.samples_of(task)]
            (fresh / _samples_file(task)).write_text("\n".join(lines) + "\n", encoding="utf-8")
        head = {
            "schema_version": SCHEMA_VERSION,
            "fingerprint": fingerprint,
            "sampled_tasks": tasks,
            "evaluation": evaluation.model_dump(mode="json", exclude={"samples"}),
        }
        text = json.dumps(head, indent=2, ensure_ascii=False) + "\n"
        (fresh / _FILE).write_text(text, encoding="utf-8")


def read_evaluation(folder: Path, *, fingerprint: str) -> Evaluation | None:
    """Return the evaluation in `folder` if it has this schema and fingerprint, else None."""
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        if (head["schema_version"], head["fingerprint"]) != (SCHEMA_VERSION, fingerprint):
            return None
        samples = [
            Sample.model_validate_json(line)
            for task in head["sampled_tasks"]
            for _, line in read_lines(folder / _samples_file(task))
        ]
        return Evaluation.model_validate({**head["evaluation"], "samples": samples})
    except (OSError, ValueError, KeyError, ValidationError):
        # A damaged record is as good as none: it is made anew.
        return None


def _samples_file(task: str) -> str:
    return f"samples_{task.replace('/', '_')}.jsonl"
