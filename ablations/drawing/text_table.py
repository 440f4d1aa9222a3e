"""Text for a terminal: tables (the home of tabulate), lists, and lines with commands."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

_COMMAND = re.compile("(?s)(.*[:;]) (layerswap [a-z-]+ .+)")
"""A text that ends with a command."""


def wrapped(text: str, width: int | None = None, *, first: str = "", indent: str = "") -> str:
    """Return a text in lines of `width`; a command that ends it is one line of its own.

    No path is broken.

    Without a width lines have 100 characters, or fit the terminal where it is narrower. `first`
    begins the first line, `indent` all others.
    """
    width = width or min(100, terminal_width() or 100)
    match = _COMMAND.fullmatch(text)
    words, command = match.groups() if match else (text, "")
    lines = textwrap.wrap(
        words,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join([*lines, f"{indent}  {command}"] if command else lines)


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal that a stream is; None where it is a pipe or a file.

    Without a stream, of stdout.
    """
    is_terminal = (stream or sys.stdout).isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def fitted(text: str, stream: TextIO) -> str:
    """Return a text whose lines fit the terminal that `stream` is, else the text as it is.

    A longer line goes on below, two blanks further in than it begins.
    """
    width = terminal_width(stream)
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        words = line.lstrip(" ")
        start = " " * (len(line) - len(words))
        is_long = len(line) > width
        lines.append(wrapped(words, width, first=start, indent=f"{start}  ") if is_long else line)
    return "\n".join(lines)


def list_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return a table of texts whose lines fit in `width`: all columns but the first are wrapped.

    None leaves every row one line, for programs that read lines.
    """
    texts = [list(row) for row in rows]
    if width is not None:
        heads = [f"{name}  " for name in head]  # tabulate pads them
        lines = [[max(map(len, text.split("\n"))) for text in row] for row in (heads, *rows)]
        sizes = [max(column) for column in zip(*lines, strict=True)]
        room = width - sizes[0] - 2 * (len(head) - 1)
        narrow_first = sorted(range(1, len(head)), key=sizes.__getitem__)
        for done, column in enumerate(narrow_first):
            share = room // (len(narrow_first) - done)
            sizes[column] = min(sizes[column], max(share, len(heads[column])))
            room -= sizes[column]
        for row in texts:
            row[1:] = [
                textwrap.fill(row[n], sizes[n], break_on_hyphens=False) for n in range(1, len(head))
            ]
    return text_table(head, texts, sides="l" * len(head))


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
