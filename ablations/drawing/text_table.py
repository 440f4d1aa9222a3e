"""Tables as text for a terminal: the home of tabulate."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    labels: int = 1,
    sides: str = "",
    width: int | None = None,
) -> str:
    """Return a table with rules below its heads and two spaces between its columns.

    Columns that do not fit in `width` go into further tables below, each with the labels.

    Args:
        head: of every column; may have several lines.
        rows: each with an entry for every column.
        labels: number of columns from the left that are set as text, and repeated below.
        sides: ``l`` or ``r`` for every column; by default labels are left and the rest right.
        width: characters that a line may have; a table has at least one column besides the labels.
    """
    from tabulate import tabulate

    sides = sides or "l" * labels + "r" * (len(head) - labels)

    def lines(columns: Sequence[int]) -> list[str]:
        align = [{"l": "left", "r": "right"}[sides[column]] for column in columns]
        text = tabulate(
            [[row[column] for column in columns] for row in rows],
            [head[column] for column in columns],
            tablefmt="simple",
            colalign=align,
            headersalign=align,
            disable_numparse=True,
            preserve_whitespace=True,
        )
        return [line.rstrip() for line in text.splitlines()]

    blocks: list[list[int]] = []
    for column in range(labels, len(head)):
        joined = [*blocks[-1], column] if blocks else [*range(labels), column]
        if blocks and width is not None and max(map(len, lines(joined))) > width:
            joined = [*range(labels), column]
            blocks.append(joined)
        else:
            blocks[-1:] = [joined]
    return "\n\n".join("\n".join(lines(block)) for block in blocks)
