"""How a table is laid on the pages of a paper. Knows widths of letters; not LaTeX's syntax.

What is too wide for a page at a size that can be read is cut into panels of some columns each,
one below the other; what is too long goes on in another table.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ablations.report.document import Entry, Table

LEAST_SCALE = 0.8
"""How far a table may be shrunk to the width of the text before it is cut into panels."""

_TEXT_PT = 345.0
"""Width of the text of LaTeX's article at 10 points; other classes have more, two columns less."""

_LETTER_PT = 4.25
"""Width of a digit of Computer Modern at 8 points (footnotesize)."""

_GAP_PT = 6.0
"""Between columns."""

_LINES = 44
"""Lines of a page's text height at that size, less those of a caption."""

_WRAP = 28
"""Letters after which text goes on in the next line of its entry."""

_HEAD = 10
"""Letters that the head of a column may have in a line, however narrow the column."""


@dataclass(frozen=True)
class Panel:
    """Some columns of some rows."""

    columns: tuple[int, ...]
    """From the left."""

    rows: tuple[int, ...]
    """From the top."""


@dataclass(frozen=True)
class Sheet:
    """A table as a paper shows it."""

    pages: tuple[tuple[Panel, ...], ...]
    """Panels that stand below each other, page by page."""

    heads: tuple[tuple[str, ...], ...]
    """Lines of the head of every column."""

    wraps: tuple[int | None, ...]
    """Letters a line of a column whose text is broken; None for the others."""

    is_grouped: bool
    """Whether the first column is left out, and stands over the rows that have it in common."""


def lay_out(table: Table) -> Sheet:
    """Return how `table` stands on pages, at `LEAST_SCALE` or more where it may be cut."""
    longest = [
        max((len(row[each].text) for row in table.rows), default=0)
        for each in range(len(table.columns))
    ]
    wraps = tuple(_wrap(table, each, longest[each]) for each in range(len(table.columns)))
    heads = tuple(
        tuple(textwrap.wrap(head, max(wrap or size, _HEAD), break_long_words=False)) or ("",)
        for head, wrap, size in zip(table.columns, wraps, longest, strict=True)
    )
    widths = [
        _GAP_PT + _LETTER_PT * max(wrap or size, *map(len, head))
        for head, wrap, size in zip(heads, wraps, longest, strict=True)
    ]
    first = [row[0].text for row in table.rows]
    is_grouped = table.is_record and len(set(first)) < len(first)
    heights = [_height(row, wraps) for row in table.rows]
    panels: list[tuple[Panel, float]] = []
    for columns in _blocks(table, widths, is_grouped):
        # What is shrunk to the width of the text is lower, too.
        scale = min(1.0, _TEXT_PT / sum(widths[each] for each in columns))
        head = 1 + max(len(heads[each]) for each in columns)
        groups = first if is_grouped else None
        for rows, lines in _runs(heights, groups, _LINES / scale - head):
            panels.append((Panel(columns, rows), scale * (lines + head)))
    return Sheet(tuple(_pages(panels)), heads, wraps, is_grouped)


def _wrap(table: Table, column: int, longest: int) -> int | None:
    if longest <= _WRAP or not table.is_text(column):
        return None
    words = (word for row in table.rows for word in row[column].text.split())
    return max(_WRAP, *map(len, words))


def _blocks(table: Table, widths: Sequence[float], is_grouped: bool) -> list[tuple[int, ...]]:
    """Return the columns of each panel: as few panels as can be read, about equally wide."""
    if table.is_record:
        return [tuple(range(int(is_grouped), len(widths)))]
    labels = tuple(range(min(table.text_columns, len(widths))))
    others = range(len(labels), len(widths))
    room = _TEXT_PT / LEAST_SCALE - sum(widths[each] for each in labels)
    blocks: list[tuple[int, ...]] = []
    for number in range(1, len(others) + 1):
        size = math.ceil(len(others) / number)
        blocks = [tuple(others[at : at + size]) for at in range(0, len(others), size)]
        if all(sum(widths[each] for each in block) <= room for block in blocks):
            break
    return [(*labels, *block) for block in blocks] or [labels]


def _runs(
    heights: Sequence[int], groups: Sequence[str] | None, room: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield rows that fit in `room` lines together, with the lines that they take."""
    run: list[int] = []
    used = 0.0
    for row, height in enumerate(heights):
        is_new = groups is not None and (not run or groups[run[-1]] != groups[row])
        lines = height + 1.5 * is_new
        if run and used + lines > room:
            yield tuple(run), used
            run, used, lines = [], 0.0, height + 1.5 * (groups is not None)
        run.append(row)
        used += lines
    yield tuple(run), used


def _pages(panels: Sequence[tuple[Panel, float]]) -> Iterator[tuple[Panel, ...]]:
    page: list[Panel] = []
    used = 0.0
    for panel, lines in panels:
        if page and used + lines > _LINES:
            yield tuple(page)
            page, used = [], 0.0
        page.append(panel)
        used += lines
    yield tuple(page)


def _height(row: Sequence[Entry], wraps: Sequence[int | None]) -> int:
    """Return how many lines a row takes."""
    broken = (textwrap.wrap(e.text, w) for e, w in zip(row, wraps, strict=True) if w is not None)
    return max((1, *map(len, broken)))
