"""A report as Markdown, LaTeX and HTML: the home of Jinja2. Knows escapes; computes nothing.

The templates stand beside this file. What they insert is escaped for their format, always.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ablations.report.document import Entry, Figure, Lines, Report, Table
from ablations.report.formats.columns import LONGEST, blocks, is_grouped, words

if TYPE_CHECKING:
    from jinja2 import Environment

_BREAK = "\u200b"
"""Where a long word may go on in the next line."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # after a row's end it would begin an argument
    "–": "--",
    "×": r"$\times$",
    "·": r"$\cdot$",
    " ": "~",  # within a word, which an interval is
    _BREAK: r"\penalty500{}",
}


def render_html(report: Report) -> str:
    """Return the page: inline style, script and figures; tables that sort by their headers."""
    environment = _environment(autoescape=True)
    environment.filters |= {"svgs": _inline_svgs, "number": _with_parts}
    return environment.get_template("report.html.j2").render(report=report)


def render_markdown(report: Report, *, figures: str = "figures") -> str:
    """Return the whole report as text.

    Args:
        report: what to write.
        figures: folder of the drawn figures, from the Markdown file.
    """
    template = _environment(finalize=_escaping(escape_markdown)).get_template("report.md.j2")
    return template.render(report=report, figures=figures).rstrip() + "\n"


def render_latex(report: Report, *, figures: str = "figures") -> str:
    r"""Return every table and figure as LaTeX, booktabs and one longtable each.

    To use: ``\usepackage{array,booktabs,graphicx,longtable}``, then ``\input{tables.tex}``, or
    one of the tables by itself.

    Args:
        report: what to write.
        figures: folder of the drawn figures, from the file that LaTeX compiles.
    """
    environment = _environment(
        finalize=_escaping(escape_latex),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters |= {"blocks": blocks, "groups": _groups}
    template = environment.get_template("tables.tex.j2")
    return template.render(report=report, figures=figures)


def escape_markdown(text: str) -> str:
    """Return `text` with what Markdown would take for syntax escaped; on one line."""
    return re.sub(r"[\\|*_`<#\[]", r"\\\g<0>", " ".join(text.split()))


def escape_latex(text: str) -> str:
    """Return `text` for LaTeX: no character of it is taken for a command; long words may break."""
    shown = (word if len(word) <= LONGEST else _breakable(word) for word in words(text))
    return " ".join("".join(_LATEX.get(sign, sign) for sign in word) for word in shown)


def _breakable(word: str) -> str:
    return _BREAK.join(re.findall(rf"[^_/=]{{1,{LONGEST - 1}}}[_/=]*|[_/=]+", word))


def _environment(**options: Any) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ablations.report.formats", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    kinds = (Lines, Figure, Table)
    environment.tests |= {
        kind.__name__.lower(): lambda part, kind=kind: isinstance(part, kind) for kind in kinds
    }
    return environment


def _escaping(escape: Callable[[str], str]) -> Callable[[Any], str]:
    """Return `escape` for whatever a template inserts, but for what it calls safe."""
    return lambda value: value if hasattr(value, "__html__") else escape(str(value))


def _groups(table: Table) -> Iterator[tuple[str, list[tuple[Entry, ...]]]]:
    """Yield what rows have in common, and the rows; nothing and all rows of other tables."""
    if not is_grouped(table):
        yield "", list(table.rows)
        return
    for text, rows in groupby(table.rows, key=lambda row: row[0].text):
        yield text, list(rows)


def _inline_svgs(figure: Figure) -> Iterator[Any]:
    """Yield the SVG elements of the panels, with ids that no other figure of the page has."""
    from markupsafe import Markup, escape

    label = escape(f"{figure.title}. The tables hold the same numbers.")
    for place, panel in enumerate(figure.panels):
        text = panel.decode("utf-8")
        text = text[text.index("<svg") :]
        text = re.sub(r'\bid="', f'id="{figure.key}-{place}-', text)
        text = re.sub(r'(href="|url\()#', rf"\g<1>#{figure.key}-{place}-", text)
        # Metadata names its schemas by their addresses, and says nothing that the page does not.
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        yield Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))


def _with_parts(entry: Entry) -> Any:
    """Return an entry for the page: names may break within, intervals only before them."""
    from markupsafe import Markup, escape

    def breakable(text: str) -> Markup:
        return Markup(re.sub(r"(?<=\w)[_=+]", r"\g<0><wbr>", str(escape(text))))

    parts = re.split(r" ?(\[[^\[\]]*\d, [^\[\]]*\])", entry.text)
    interval = Markup(' <span class="interval">{}</span>')
    shown = (interval.format(part) if at % 2 else breakable(part) for at, part in enumerate(parts))
    return Markup("").join(shown)
