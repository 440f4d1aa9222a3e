"""The paper's tables as tables of a report. Knows layouts; the values are in `ablations.paper`."""

from __future__ import annotations

from ablations.paper.published import published_tables
from ablations.report.document import Entry, Table


def reference_table(key: str) -> Table | None:
    """Return the published table that belongs beside the layout `key`; None where there is none."""
    document = published_tables()
    found = document["tables"].get(key)
    if found is None:
        return None
    origin = f"{document['paper']}, {found['source']}; {document['protocol']}."
    return Table(
        f"published-{key}",
        f"Published: {found['source']} of arXiv 2410.01335",
        ("MGSM", *found["columns"]),
        tuple(
            (Entry(row["name"]), *(Entry(f"{value:.1f}", value) for value in row["values"]))
            for row in found["rows"]
        ),
        (f"Reference only, not this run: {origin}", found["notes"]),
        is_reference=True,
    )
