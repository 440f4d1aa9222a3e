"""What a run writes at its end: its scores, its two tables, and a few of its answers."""

from __future__ import annotations

import pandas as pd

from ablations.machine.whole_files import write_text
from ablations.runs.answered import AnsweredItem
from ablations.runs.examples import examples_of_task, shown_records, write_examples
from ablations.runs.observations import items_of_record, observations_of
from ablations.runs.results import SCORES_FILE, csv_text
from ablations.runs.run import Run
from ablations.runs.written_tables import write_tables
from ablations.scoring.evaluation import Sample


def collect(run: Run) -> None:
    """Write what readers of a run need besides its records, whose items are read once.

    Raises:
        LayerSwapError: for a record that is damaged.
        OSError: where the folder cannot be written.
    """
    items, examples = list[pd.DataFrame](), list[AnsweredItem]()
    records = run.records.values()
    for task in dict.fromkeys(record.task for record in records):
        shown = shown_records(run, task)
        keys, samples = {each.record.key for each in shown}, dict[str, tuple[Sample, ...]]()
        for record in (record for record in records if record.task == task):
            read = tuple(record.samples())
            items.append(items_of_record(record, read))
            if record.key in keys:
                samples[record.key] = read
        examples += examples_of_task(run, shown, samples)
    write_text(run.path / SCORES_FILE, csv_text(run.scores))
    write_tables(run.path, records, observations_of(run.models, run.cells, items))
    write_examples(run, examples)
