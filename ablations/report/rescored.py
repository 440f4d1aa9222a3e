"""Which scores of a run were computed anew from stored answers, and what they were before."""

from __future__ import annotations

from collections.abc import Iterator

from ablations.report.document import Entry, Table, text_entries
from ablations.runner.records import CellRecord, Run, TaskRecord, read_record
from ablations.scoring.records import TaskScore
from ablations.statistics.as_text import percent


def rescored_notes(cell: CellRecord) -> list[str]:
    """Return which tasks of a cell were scored again, in words."""
    return [
        f"{record.task}: scored again by layerswap rescore, from answers that were generated "
        f"before; {_versions(record)}"
        for record in cell.tasks
        if "rescored" in record.provenance
    ]


def rescored_table(run: Run) -> Table | None:
    """Return the scores that rescoring changed, before and now; None where it changed none."""
    rows = [row for cell in run.cells for record in cell.tasks for row in _rows(run, cell, record)]
    if not rows:
        return None
    return Table(
        "rescored",
        "Scores before and after layerswap rescore",
        ("cell", "task", "metric", "before", "now", "record before", "record now"),
        tuple(rows),
        ("All scores elsewhere in this report are those of now.",),
        text_columns=3,
        is_record=True,
    )


def _rows(run: Run, cell: CellRecord, record: TaskRecord) -> Iterator[tuple[Entry, ...]]:
    rescored = record.provenance.get("rescored")
    old = None if rescored is None else read_record(run.path, rescored["first"])
    if old is None:
        return
    before = {(each.metric, each.filter): each for each in old.evaluation.scores}
    after = {(each.metric, each.filter): each for each in record.evaluation.scores}
    for metric, filter_name in dict.fromkeys([*before, *after]):
        was, now = before.get((metric, filter_name)), after.get((metric, filter_name))
        if was is not None and now is not None and was.value == now.value:
            continue
        words = text_entries([cell.label, record.task, f"{metric},{filter_name}"])
        keys = text_entries([old.key, record.key])
        yield (*words, _entry(was), _entry(now), *keys)


def _entry(score: TaskScore | None) -> Entry:
    if score is None:
        return Entry("none")
    return Entry(percent(score.value) if score.is_share else f"{score.value:.4g}", score.value)


def _versions(record: TaskRecord) -> str:
    was = record.provenance["rescored"].get("scoring_version")
    now = record.provenance.get("scoring_version")
    return f"scoring version {now} now, {was} before" if was != now else f"scoring version {now}"
