r"""The tables of a report for a paper: booktabs, one environment each. Knows LaTeX's syntax.

To use: ``\usepackage{booktabs}``, ``\usepackage{graphicx}``, then ``\input{tables.tex}``, or
one of the tables by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from ablations.report.document import Figure, Report, Table

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
        f"% Report of the study {report.name}. Needs \\usepackage{{booktabs}} and "
        "\\usepackage{graphicx}.\n"
        f"% Question: {' '.join(report.question.split())}\n"
    ]
    gaps = [] if report.gaps is None else [report.gaps]
    parts += [_table(table, report) for table in (*report.tables, *gaps)]
    parts += [_figure(figure, figures, report) for figure in report.figures]
    return "\n".join(parts)


def escape(text: str) -> str:
    """Return `text` for LaTeX: no character of it is taken for a command."""
    return "".join(_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))


def _table(table: Table, report: Report) -> str:
    return "\n".join(_table_lines(table, report)) + "\n"


def _table_lines(table: Table, report: Report) -> Iterator[str]:
    question = "" if table.is_reference else f" {escape(report.question)}"
    sides = "".join("l" if table.is_text(each) else "r" for each in range(len(table.columns)))
    yield r"\begin{table}[htbp]"
    yield r"  \centering"
    yield r"  \setlength{\belowcaptionskip}{4pt}"
    yield f"  \\caption{{\\textbf{{{escape(table.title)}.}}{question} {_notes(table)}}}"
    yield f"  \\label{{tab:{report.name}-{table.key}}}"
    # Shrinks what is too wide, and only that.
    yield r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    yield f"  \\begin{{tabular}}{{{sides}}}"
    yield r"    \toprule"
    yield f"    {' & '.join(escape(column) for column in table.columns)} \\\\"
    yield r"    \midrule"
    for row in table.rows:
        yield f"    {' & '.join(escape(entry.text) for entry in row)} \\\\"
    yield r"    \bottomrule"
    yield r"  \end{tabular}}"
    yield r"\end{table}"


def _notes(table: Table) -> str:
    return " ".join(escape(note) for note in table.notes)


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
