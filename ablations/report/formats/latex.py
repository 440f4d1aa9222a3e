r"""The tables of a report for a paper: booktabs, one environment each. Knows LaTeX's syntax.

To use: ``\usepackage{array,booktabs,graphicx}``, then ``\input{tables.tex}``, or one of the
tables by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from ablations.report.document import Figure, Report, Table
from ablations.report.formats.sheets import Panel, Sheet, lay_out

_SPECIAL = {
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
}


def render_latex(report: Report, *, figures: str = "figures") -> str:
    """Return every table and figure as LaTeX.

    Args:
        report: what to write.
        figures: folder of the drawn figures, from the file that LaTeX compiles.
    """
    parts = [
        f"% Report of the study {report.name}. Needs \\usepackage{{array,booktabs,graphicx}}.\n"
        f"% Question: {' '.join(report.question.split())}\n"
    ]
    for table in report.tables:
        parts += _table(table, report, "" if table.is_reference else report.question)
    parts += [_figure(figure, figures, report) for figure in report.figures]
    for table in report.details:
        parts += _table(table, report, "")
    return "\n".join(parts)


def escape(text: str) -> str:
    """Return `text` for LaTeX: no character of it is taken for a command."""
    return "".join(_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))


def _table(table: Table, report: Report, question: str) -> Iterator[str]:
    sheet = lay_out(table)
    for number, panels in enumerate(sheet.pages):
        yield r"\begin{table}[htbp]"
        yield r"  \centering\footnotesize\setlength{\tabcolsep}{3pt}"
        yield r"  \setlength{\belowcaptionskip}{4pt}"
        if number == 0:
            told = f"\\textbf{{{escape(table.title)}.}} {escape(f'{question} {_notes(table)}')}"
            yield f"  \\caption{{{told}}}"
            yield f"  \\label{{tab:{report.name}-{table.key}}}"
        else:
            yield r"  \addtocounter{table}{-1}"
            yield f"  \\caption{{\\textbf{{{escape(table.title)}, continued.}}}}"
        for panel in panels:
            yield from _panel(table, sheet, panel)
        yield r"\end{table}"
        yield ""


def _panel(table: Table, sheet: Sheet, panel: Panel) -> Iterator[str]:
    # Shrinks what is too wide, and only that.
    yield r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield f"  \\begin{{tabular}}{{{''.join(_side(table, sheet, each) for each in panel.columns)}}}"
    yield r"    \toprule"
    yield f"    {' & '.join(_head(table, sheet, each) for each in panel.columns)} \\\\"
    yield r"    \midrule"
    group = None
    for row in (table.rows[each] for each in panel.rows):
        if sheet.is_grouped and row[0].text != group:
            if group is not None:
                yield r"    \addlinespace"
            group = row[0].text
            over = f"\\multicolumn{{{len(panel.columns)}}}{{l}}{{\\textit{{{escape(group)}}}}}"
            yield f"    {over} \\\\"
        yield f"    {' & '.join(escape(row[each].text) for each in panel.columns)} \\\\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}}\par\medskip"


def _side(table: Table, sheet: Sheet, column: int) -> str:
    wrap = sheet.wraps[column]
    if wrap is not None:
        return rf">{{\raggedright\arraybackslash}}p{{{wrap / 2:g}em}}"
    return "l" if table.is_text(column) else "r"


def _head(table: Table, sheet: Sheet, column: int) -> str:
    lines = r" \\ ".join(escape(line) for line in sheet.heads[column])
    if len(sheet.heads[column]) == 1:
        return lines
    return f"\\shortstack[{'l' if table.is_text(column) else 'r'}]{{{lines}}}"


def _notes(table: Table) -> str:
    return " ".join(table.notes)


def _figure(figure: Figure, folder: str, report: Report) -> str:
    return "\n".join(
        [
            r"\begin{figure}[htbp]",
            r"  \centering",
            f"  \\includegraphics[width=\\linewidth]{{{folder}/{figure.key}.pdf}}",
            f"  \\caption{{\\textbf{{{escape(figure.title)}.}} {escape(figure.caption)}}}",
            f"  \\label{{fig:{report.name}-{figure.key}}}",
            r"\end{figure}",
            "",
        ]
    )
