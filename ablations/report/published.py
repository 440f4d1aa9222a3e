"""The paper's tables as tables of a report. Knows layouts; the values are in `ablations.paper`."""

from __future__ import annotations

from ablations.paper.published import published_table
from ablations.report.document import Entry, Table


def reference_table(key: str) -> Table | None:
    """Return the published table that belongs beside the layout `key`; None where there is none."""
    found = published_table(key)
    if found is None:
        return None
    first, *others = found.notes
    return Table(
        f"published-{key}",
        f"Published: {found.source} of arXiv 2410.01335",
        ("MGSM", *found.columns),
        tuple(
            (Entry(name), *(Entry(f"{value:.1f}", value) for value in values))
            for name, values in found.rows
        ),
        (f"Reference only, not this run: {first}", *others),
        is_reference=True,
    )
