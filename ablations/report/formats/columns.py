"""How wide the columns of a table are in a paper, and which stand together. Knows no syntax.

Measured in letters: a digit of Computer Modern at 8 points (LaTeX's footnotesize), half an em.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ablations.report.document import Table

LONGEST = 16
"""Letters of a word that is never broken."""

_ROOM = 81.0
"""Letters in a line of LaTeX's article at 10 points; other classes have more."""

_GAP = 1.42
"""Between columns: twice 3 points."""

_MOST_LABEL, _MOST = 28.0, 20.0
"""Letters of a line of a label, and of a number with what is said of it."""

_NARROW, _WIDE = frozenset(" .,:;[]'|!ijl"), frozenset("+=×–%&@mwMWABCDEGHKNOQRUVXYZ")


@dataclass(frozen=True)
class Block:
    """Some columns of a table, which fit on a page beside each other."""

    columns: tuple[int, ...]
    """From the left."""

    widths: tuple[float, ...]
    """Of each column, in em."""


def is_grouped(table: Table) -> bool:
    """Return whether the first column stands over the rows that have it in common."""
    return table.is_record and len({row[0].text for row in table.rows}) < len(table.rows)


def blocks(table: Table) -> list[Block]:
    """Return the columns of `table` in as few blocks as fit, about equally many in each.

    A record stays whole, however narrow its columns become; else labels begin every block.
    """
    everything = tuple(range(len(table.columns)))
    labels, others = everything[: table.text_columns], everything[table.text_columns :]
    several: list[Block] = []
    if table.is_record:
        for quarters in range(4, 60):
            several = [_block(table, everything[is_grouped(table) :], quarters / 4)]
            if _fits(several[0]):
                break
        return several
    for number in range(1, len(others) + 1):
        size = math.ceil(len(others) / number)
        starts = range(0, len(others), size)
        several = [_block(table, (*labels, *others[at : at + size])) for at in starts]
        if all(map(_fits, several)):
            break
    return several or [_block(table, labels)]


def words(text: str) -> list[str]:
    """Return what is not broken, unless it is longer than `LONGEST`: words, and intervals."""
    return re.findall(r"\[[^\[\]\s]+, [^\[\]\s]+\]\S*|\S+", " ".join(text.split()))


def _block(table: Table, columns: tuple[int, ...], lines: float | None = None) -> Block:
    return Block(columns, tuple(_width(table, each, lines) for each in columns))


def _fits(block: Block) -> bool:
    return 2 * sum(block.widths) + _GAP * (len(block.widths) - 1) <= _ROOM


def _width(table: Table, column: int, lines: float | None) -> float:
    """Return em for a column whose longest text takes about `lines`; None where that is free."""
    texts = [row[column].text for row in table.rows]
    shown = (table.columns[column], *texts)
    least = max((min(_letters(w), LONGEST) for text in shown for w in words(text)), default=0.0)
    longest = max(map(_letters, texts), default=0.0)
    most = _MOST_LABEL if table.is_text(column) else _MOST
    wanted = min(longest, most) if lines is None else longest / lines
    return math.ceil(max(least, wanted)) / 2


def _letters(text: str) -> float:
    """Return about how wide `text` is; rather more than less."""
    return sum(0.6 if each in _NARROW else 1.6 if each in _WIDE else 1.0 for each in text)
