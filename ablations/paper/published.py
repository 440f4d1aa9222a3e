"""Published values beside ours, as reference. Knows `published.json`; never a run.

They are other models, items and engines: they stand in tables of their own.
"""

from __future__ import annotations

import json
from importlib.resources import files

from ablations.report.document import Entry, Table


def published_table(key: str) -> Table | None:
    """Return the published table of the layout `key`; None where the paper has none."""
    text = (files("ablations.paper") / "tables.json").read_text(encoding="utf-8")
    document = json.loads(text)
    found = document["tables"].get(key)
    if found is None:
        return None
    rows = tuple(
        (Entry(row["name"]), *(Entry(f"{value:.1f}", value) for value in row["values"]))
        for row in found["rows"]
    )
    return Table(
        f"published-{key}",
        f"Published: {found['source']} of arXiv 2410.01335",
        ("MGSM", *found["columns"]),
        rows,
        (
            f"Reference only, not this run: {document['paper']}, {found['source']}; "
            f"{document['protocol']}.",
            found["notes"],
        ),
        is_reference=True,
    )
