"""Scores that a run folder has already, under another name of the cell. Knows records only.

A cell's name in its study (its label, or a pair that was added) may change while its weights and
its protocol do not: then its record is copied, not evaluated again.
"""

from __future__ import annotations

from pathlib import Path

from ablations.runner import records
from ablations.study.cells import Cell
from layerswap_method.errors import LayerSwapError


def finished_by_score(out: Path) -> dict[str, records.CellRecord]:
    """Return the readable records in `out` by their score key, one for each."""
    found: dict[str, records.CellRecord] = {}
    for folder in sorted((out / "cells").glob("[!.]*")):
        try:
            record = records.read_cell(out, folder.name)
        except LayerSwapError:
            continue
        if record is not None:
            found.setdefault(record.score_key, record)
    return found


def copy_record(out: Path, source: records.CellRecord, cell: Cell) -> None:
    """Write the record of `cell` with the scores of `source`."""
    fields = {name: getattr(source, name) for name in records.CellHead.model_fields}
    head = records.CellHead(
        **{
            **fields,
            "key": cell.key,
            "label": cell.label,
            "values": dict(cell.values),
            "experts": dict(cell.experts),
            "language": cell.language,
            "kind": cell.kind,
            "plan": None if cell.plan is None else cell.plan.sources,
            "provenance": {**source.provenance, "evaluated_as": source.label},
        }
    )
    records.write_cell(out, head, dict(cell.merge), source.scores, source.samples())
