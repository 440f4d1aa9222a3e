"""A report as one HTML file that needs nothing else. Knows markup; computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from ablations.report.document import Entry, Figure, Report, Table

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page may load nothing, which a browser then enforces."""


def render_html(report: Report) -> str:
    """Return the page: inline style, script and figures; tables that sort by their headers."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield "<head>"
    yield '<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{escape(report.name)}</title>"
    yield f"<style>\n{_asset('page.css')}</style>"
    yield "</head>"
    yield "<body>"
    yield "<header>"
    yield f"<p>Study</p><h1>{escape(report.name)}</h1>"
    yield f'<p class="question">{escape(report.question)}</p>'
    if report.source:
        yield f"<p>Source of the question: {escape(report.source)}</p>"
    yield "<dl>"
    yield from (f"<div><dt>{escape(n)}</dt><dd>{escape(t)}</dd></div>" for n, t in report.facts)
    yield "</dl>"
    yield "</header>"
    yield "<main>"
    yield from _list("answers", "Answers", report.answers)
    yield from _list("noise", "What is noise", report.noise)
    for table in report.tables:
        yield from _table(table, "" if table.is_reference else report.question)
    for figure in report.figures:
        yield from _figure(figure)
    for table in report.details:
        yield from _table(table, "")
    yield from _list("reading", "How to read this", report.notes)
    yield "</main>"
    yield f"<script>\n{_asset('page.js')}</script>"
    yield "</body>"
    yield "</html>"


def _list(key: str, title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f'<section id="{key}"><h2>{escape(title)}</h2><ul>'
    yield from (f"<li>{escape(line)}</li>" for line in lines)
    yield "</ul></section>"


def _table(table: Table, question: str) -> Iterator[str]:
    kind = ' class="reference"' if table.is_reference else ""
    yield f'<section id="{table.key}"{kind}><h2>{escape(table.title)}</h2>'
    if question:
        yield f'<p class="question">{escape(question)}</p>'
    # Wide tables scroll by themselves; tabindex lets the keyboard do so.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
    yield "<table><thead><tr>"
    for number, column in enumerate(table.columns):
        side = ' class="text"' if table.is_text(number) else ""
        button = f'<button type="button">{escape(column) or "&nbsp;"}</button>'
        yield f'<th scope="col" aria-sort="none"{side}>{button}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        yield "<tr>" + "".join(_entries(row, table)) + "</tr>"
    yield "</tbody></table></div>"
    yield from (f'<p class="note">{escape(note)}</p>' for note in table.notes)
    yield "</section>"


def _entries(row: Sequence[Entry], table: Table) -> Iterator[str]:
    for number, entry in enumerate(row):
        classes = ["text"] * table.is_text(number) + ["gap"] * entry.is_gap
        kind = f' class="{" ".join(classes)}"' if classes else ""
        value = "" if entry.value is None else f' data-value="{entry.value!r}"'
        yield f"<td{kind}{value}>{escape(entry.text)}</td>"


def _figure(figure: Figure) -> Iterator[str]:
    yield f'<section id="{figure.key}"><h2>{escape(figure.title)}</h2><figure>'
    yield _inline_svg(figure)
    yield f"<figcaption>{escape(figure.caption)}</figcaption></figure></section>"


def _inline_svg(figure: Figure) -> str:
    """Return the SVG element with ids that no other figure of the page has."""
    text = figure.images["svg"].decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{figure.key}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{figure.key}-", text)
    # Metadata names its schemas by their addresses, and says nothing that the page does not.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    label = escape(f"{figure.title}. The tables hold the same numbers.")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _asset(name: str) -> str:
    return (files("ablations.report.formats") / name).read_text(encoding="utf-8")
