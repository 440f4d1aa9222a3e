"""A report as Markdown. Knows the syntax; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ablations.report.document import Report, Table


def render_markdown(report: Report, *, figures: str = "figures") -> str:
    """Return the whole report as text.

    Args:
        report: what to write.
        figures: folder of the drawn figures, from the Markdown file.
    """
    return "\n".join(_lines(report, figures)).rstrip() + "\n"


def _lines(report: Report, figures: str) -> Iterator[str]:
    yield f"# {escape(report.name)}"
    yield ""
    yield f"**{escape(report.question)}**"
    if report.source:
        yield ""
        yield f"Source of the question: {escape(report.source)}"
    yield ""
    yield from (f"- {escape(name)}: {escape(text)}" for name, text in report.facts)
    for title, lines in (
        ("Answers", report.answers),
        ("What is noise", report.noise),
    ):
        if lines:
            yield from ("", f"## {title}", "")
            yield from (f"- {escape(line)}" for line in lines)
    for table in report.tables:
        yield from _table(table)
    for figure in report.figures:
        yield from ("", f"## Figure: {escape(figure.title)}", "")
        yield f"![{escape(figure.title)}]({figures}/{figure.key}.svg)"
        yield from ("", escape(figure.caption))
    for table in report.details:
        yield from _table(table)
    if report.notes:
        yield from ("", "## How to read this", "")
        yield from (f"- {escape(note)}" for note in report.notes)


def _table(table: Table) -> Iterator[str]:
    yield from ("", f"## {escape(table.title)}", "")
    yield _row([escape(column) for column in table.columns])
    yield _row(["---" if table.is_text(each) else "---:" for each in range(len(table.columns))])
    for row in table.rows:
        yield _row([escape(entry.text) for entry in row])
    for note in table.notes:
        yield from ("", f"*{escape(note)}*")


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def escape(text: str) -> str:
    """Return `text` with what Markdown would take for syntax escaped; on one line."""
    flat = " ".join(text.split())
    for sign in ("\\", "|", "*", "_", "`", "<", "#", "["):
        flat = flat.replace(sign, f"\\{sign}")
    return flat
