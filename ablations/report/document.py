"""What a report consists of, before it is Markdown, LaTeX, CSV or HTML. Knows no statistic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """What has a heading of its own."""

    key: str
    """Lower-case letters, digits and hyphens; unique in a report."""

    title: str
    """What it shows."""


@dataclass(frozen=True)
class Lines(Part):
    """Some sentences under a title."""

    lines: tuple[str, ...]
    """At least one."""


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table."""

    text: str
    """As shown."""

    value: float | None = None
    """To sort by; None for text."""

    is_gap: bool = False
    """Whether a cell behind it is missing or failed."""


@dataclass(frozen=True)
class Table(Part):
    """A table with its notes."""

    columns: tuple[str, ...]
    """Head of every column."""

    rows: tuple[tuple[Entry, ...], ...]
    """As many entries as columns each."""

    notes: tuple[str, ...] = ()
    """What the numbers mean, and what they do not."""

    text_columns: int = 1
    """How many columns from the left are set as text, whatever they hold."""

    is_reference: bool = False
    """Whether it holds published values, which are not this run's."""

    is_record: bool = False
    """Whether a row is read as a whole; else its columns may stand apart, as models do."""

    def is_text(self, column: int) -> bool:
        """Return whether a column is set as text: it is one of the first, or has no number."""
        return column < self.text_columns or all(row[column].value is None for row in self.rows)


@dataclass(frozen=True)
class Figure(Part):
    """A drawn figure."""

    caption: str
    """How to read it."""

    images: dict[str, bytes]
    """All panels: file name extension (``svg``, ``png``, ``pdf``) -> content."""

    panels: tuple[bytes, ...]
    """An SVG per panel, which a page puts beside or below each other."""


@dataclass(frozen=True)
class Report:
    """A report in the order in which it is read."""

    name: str
    """Of the study."""

    question: str
    """Of the study."""

    source: str
    """Where the question comes from; may be empty."""

    problems: tuple[str, ...]
    """What is wrong with the evaluation itself; said before everything else."""

    bottom_line: tuple[str, ...]
    """The answer, in one to five sentences."""

    merges: tuple[str, ...]
    """What the letters in labels mean, and what all merges have in common; on the first screen."""

    lead: tuple[Part, ...]
    """The figure and the table of the first screen."""

    tables: tuple[Table, ...]
    """More layouts, tables per parameter, and the comparison with the baselines."""

    figures: tuple[Figure, ...]
    """More figures; empty without matplotlib."""

    details: tuple[Table, ...]
    """Cells without a record, every comparison, every cell."""

    noise: tuple[str, ...]
    """How small a difference the items can show."""

    notes: tuple[str, ...]
    """How the statistics were computed, and what else the reader must know."""

    facts: tuple[tuple[str, str], ...]
    """What the numbers are from: cells, engine, versions."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything below the first screen, in the order in which every format shows it."""
        noise, notes = (
            [Lines(key, title, lines)] if lines else []
            for key, title, lines in (
                ("noise", "What is noise", self.noise),
                ("reading", "How to read this", self.notes),
            )
        )
        return (*self.figures, *self.tables, *noise, *self.details, *notes)

    @property
    def all_figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the report."""
        return tuple(part for part in (*self.lead, *self.parts) if isinstance(part, Figure))


def gap() -> Entry:
    """Return the entry for what is not there."""
    return Entry("–", None, is_gap=True)


def text_entries(texts: Sequence[str]) -> tuple[Entry, ...]:
    """Return entries that hold text."""
    return tuple(Entry(text) for text in texts)


def transposed(table: Table) -> Table:
    """Return a table of models as columns with the models as rows, and the tasks as columns."""
    labels = table.text_columns
    heads = (", ".join(filter(None, (each.text for each in row[:labels]))) for row in table.rows)
    rows = tuple(
        (Entry(name), *(row[labels + place] for row in table.rows))
        for place, name in enumerate(table.columns[labels:])
    )
    return replace(table, columns=("model", *heads), rows=rows, text_columns=1)
