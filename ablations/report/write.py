"""The report of a run: its parts, and the files that hold them."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ablations.drawing.canvas import HINT, can_draw
from ablations.drawing.text_table import wrapped
from ablations.machine.whole_files import (
    check_results,
    list_results,
    write_bytes,
    write_errors,
)
from ablations.report.analysis import Analysis, analyse
from ablations.report.answer_words import markdown_text
from ablations.report.comparisons import partial_comparisons
from ablations.report.examples import TaskExamples, examples_by_task, examples_markdown
from ablations.report.figure_layout import WIDTH_IN, Figure
from ablations.report.figures import figures
from ablations.report.notes import facts, notes, run_problems
from ablations.report.pages import page_environment
from ablations.report.power import power_note
from ablations.report.sentences import has_answers_table, sentences
from ablations.report.tables import (
    answers_table,
    best_table,
    cells_table,
    comparisons_table,
    frame_text,
    layout_tables,
    pairs_table,
    scores_table,
)
from ablations.runs.examples import read_examples
from ablations.runs.records import RUN_FILE
from ablations.runs.results import SCORES_FILE, csv_text
from ablations.runs.run import Run
from layerswap_method.errors import InputError, nearest, with_valid

FORMATS = ("html", "md", "latex", "csv")
"""Formats of a report. The two frames are always written as parquet."""

_WIDTH = 100
_MOST_OPEN, _MOST_ANSWERS, _MOST_ON_PHONE = 40, 8, 40
"""Most rows of a table that is shown at once, of that of the main comparisons (of a grid, sentences
say what it has), and most numbers of one that is on a phone."""


class Report(NamedTuple):
    """A report in the order in which it is read.

    The first figure and the first table stand on the first screen. Key, title and notes of a table
    are in its ``attrs``; the last three are the frames that everything is made from.
    """

    name: str
    question: str
    problems: Sequence[str]
    sentences: Sequence[str]
    figures: Sequence[Figure]
    tables: Sequence[pd.DataFrame]
    examples: Sequence[TaskExamples]
    notes: Sequence[str]
    facts: Mapping[str, str]
    observations: pd.DataFrame
    comparisons: pd.DataFrame
    scores: pd.DataFrame


def make_report(run: Run, *, draw: bool = True, analysis: Analysis | None = None) -> Report:
    """Return the report of a run.

    Args:
        run: with at least one finished cell.
        draw: whether to draw figures, which needs matplotlib.
        analysis: of the run, where it has been made.

    Raises:
        InputError: for a run without a finished cell, or a study that names a task that is not
            in it.
    """
    if not run.cells:
        raise InputError(_emptiness(run))
    analysis = analysis or analyse(run)
    study, scores, shown = analysis.study, analysis.results.scores, analysis.shown
    frame, means, best = analysis.comparison_frame, analysis.score_frame, analysis.best
    level = study.evaluate.level
    tables = [
        scores_table(means, study),
        None if best is None or best["p_pairs"].isna().all() else best_table(best, means, level),
        pairs_table(means),
        *layout_tables(means, study.report.tables, shown),
        comparisons_table(frame, means, level) if len(frame) else None,
        cells_table(scores),
    ]
    if has_answers_table(frame):
        tables.insert(0, answers_table(frame, level))
    remarks = [*partial_comparisons(analysis.comparisons, shown), *notes(run, frame)]
    if can_show := power_note(analysis):
        remarks.append(f"{can_show} (layerswap power with the folder of the run says more.)")
    drawn: list[Figure] = []
    if draw and can_draw():
        drawn = figures(analysis)
    elif draw:
        remarks.append(f"Figures are left out: {HINT}.")
    return Report(
        name=study.name,
        question=study.question,
        problems=run_problems(run, scores),
        sentences=sentences(analysis),
        figures=drawn,
        tables=[table for table in tables if table is not None],
        examples=examples_by_task(read_examples(run.path), dict.fromkeys(scores["task"])),
        notes=remarks,
        facts=facts(run),
        observations=analysis.results.observations,
        comparisons=frame,
        scores=scores,
    )


def report_folder(run: Path, out: Path | None = None) -> Path:
    """Return the folder of the report of a run folder: `out`, or the run's own.

    Raises:
        InputError: for a link in the run, or another run in the way.
    """
    folder = out or run / "report"
    if out is None and folder.is_symlink():
        raise InputError(f"{folder}: is a link; name the folder to write to with --out")
    if (folder / RUN_FILE).exists():
        raise InputError(f"--out {folder}: is a run, whose files the report would replace")
    return folder


def write_report(report: Report, formats: Sequence[str], out: Path) -> tuple[Path, ...]:
    """Write a report to the folder `out` and return its files, those to read first.

    ``html``: report.html, which needs no other file; ``md``: report.md; ``latex``: tables.tex;
    ``csv``: scores.csv and comparisons.csv; always: observations.parquet and comparisons.parquet.
    Figures stand in figures/ where Markdown or LaTeX refer to them. Other files of `out` stay.

    Raises:
        InputError: for a format that there is not, or a file of the user in the way.
        LayerSwapError: where the folder cannot be written; an earlier report then stays.
    """
    unknown = next((name for name in formats if name not in FORMATS), None)
    if unknown is not None or not formats:
        fault = "no format named"
        if unknown is not None:
            fault = f"no format {unknown!r}{nearest(unknown, FORMATS)}"
        raise InputError(with_valid(fault, FORMATS))
    files: dict[str, bytes] = {}
    if "html" in formats:
        files["report.html"] = render_html(report).encode()
    if "md" in formats:
        files["report.md"] = render_markdown(report).encode()
    if "latex" in formats:
        files["tables.tex"] = render_latex(report).encode()
    if "csv" in formats:
        files[SCORES_FILE] = csv_text(report.scores).encode()
        files["comparisons.csv"] = csv_text(report.comparisons).encode()
    for name, frame in (("observations", report.observations), ("comparisons", report.comparisons)):
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        files[f"{name}.parquet"] = buffer.getvalue()
    if {"md", "latex"} & set(formats):
        for figure in report.figures:
            for kind, image in figure.images.items():
                files[f"figures/{figure.key}.{kind}"] = image
    _replace(out, files)
    return tuple(out / name for name in files)


def scores_of(report: Report) -> pd.DataFrame:
    """Return the table of models and tasks."""
    return next(table for table in report.tables if table.attrs["key"] == "scores")


def scores_text(report: Report) -> str:
    """Return the table of models and tasks as it stands in a terminal."""
    return frame_text(scores_of(report))


def answer_text(report: Report) -> str:
    """Return question, problems and answer as they stand in a terminal."""
    lines = [report.question, *(f"Warning: {line}" for line in report.problems), *report.sentences]
    text = "\n".join(wrapped(line, indent="  ") for line in lines)
    first = report.tables[0]
    if first.attrs["key"] == "answers":
        text += f"\n\n{frame_text(first)}"
    return text


def render_html(report: Report) -> str:
    """Return the page: style, script and figures in it; tables that can be sorted and filtered."""
    from markupsafe import Markup

    environment = page_environment()
    environment.filters["svg"] = lambda figure: Markup(_inline_svg(figure))
    environment.filters["parts"] = _parts
    template = environment.get_template("page.html.j2")
    text: str = template.render(report=report, most_on_phone=_MOST_ON_PHONE)
    return text


def render_markdown(report: Report) -> str:
    """Return the report as Markdown; figures are in figures/."""
    lines = [f"# {markdown_text(report.question)}", "", f"Study: {markdown_text(report.name)}"]
    for problem in report.problems:
        lines += ["", f"**Warning:** {markdown_text(problem)}"]
    lines += ["", "## Answer", "", *(f"- {markdown_text(line)}" for line in report.sentences)]
    for figure in report.figures:
        lines += ["", f"## Figure: {markdown_text(figure.title)}", ""]
        lines += [f"![{markdown_text(figure.alt)}](figures/{figure.key}.svg)", ""]
        lines.append(markdown_text(figure.caption))
    for frame in report.tables:
        shown = frame.map(markdown_text).rename(columns=lambda name: markdown_text(str(name)))
        align = ["left" if column < 2 else "right" for column in range(len(frame.columns))]
        text = shown.to_markdown(index=False, disable_numparse=True, colalign=align)
        lines += ["", f"## {markdown_text(frame.attrs['title'])}", "", text]
        lines += [
            line for note in frame.attrs["notes"] for line in ("", f"*{markdown_text(note)}*")
        ]
    lines += examples_markdown(report.examples)
    lines += ["", "## Notes", "", *(f"- {markdown_text(note)}" for note in report.notes)]
    lines += ["", "## About this run", ""]
    lines += [
        f"- {markdown_text(name)}: {markdown_text(text)}" for name, text in report.facts.items()
    ]
    return "\n".join(lines) + "\n"


def render_latex(report: Report) -> str:
    r"""Return every table (booktabs, longtable) and figure as LaTeX, as wide as the page at most.

    To use: ``\usepackage{amssymb,array,booktabs,graphicx,longtable}`` and ``\input{tables.tex}``.
    """
    parts = [f"% Tables and figures of the study {_latex(report.name)}."]
    parts.append("% Needs \\usepackage{amssymb,array,booktabs,graphicx,longtable}.")
    parts.append("\\begingroup\\footnotesize\\setlength{\\tabcolsep}{2pt}")
    for frame in report.tables:
        title, key = frame.attrs["title"], frame.attrs["key"]
        shown = frame.map(_latex).rename(columns=lambda name: _latex(str(name)))
        parts.append(
            shown.style.hide(axis="index").to_latex(
                hrules=True,
                environment="longtable",
                column_format=_column_format(frame),
                caption=_latex(f"{title}. {' '.join(frame.attrs['notes'])}"),
                label=f"tab:{report.name}-{key}",
            )
        )
    parts.append("\\endgroup")
    for figure in report.figures:
        parts.append(
            "\\begin{figure}[htbp]\n  \\centering\n"
            f"  \\includegraphics[width={min(1.0, figure.share):.3f}\\linewidth]"
            f"{{figures/{figure.key}.pdf}}\n"
            f"  \\caption{{{_latex(f'{figure.title}. {figure.caption}')}}}\n"
            f"  \\label{{fig:{report.name}-{figure.key}}}\n\\end{{figure}}\n"
        )
    return "\n".join(parts)


def _column_format(frame: pd.DataFrame) -> str:
    """Return columns of LaTeX that share a line of about 80 letters by what each needs."""
    needs = []
    for name in frame.columns:
        texts = [str(name), *frame[name]]
        word = max(len(word) for text in texts for word in [*text.split(), ""])
        needs.append(max(word, min(16, max(map(len, texts)))) + 2)
    shares = [(1 - 0.013 * len(needs)) * need / max(80, sum(needs)) for need in needs]
    sides = ["right", *["left"] * len(shares)]
    return "".join(
        f">{{\\ragged{side}\\arraybackslash}}p{{{share:.3f}\\linewidth}}"
        for side, share in zip(sides, shares, strict=False)
    )


_LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#_%"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",
    "]": "{]}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "▽": r"$\triangledown$",
    "■": r"$\blacksquare$",
    "●": r"$\bullet$",
    "★": r"$\bigstar$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


class _Part(NamedTuple):
    """Rows of a table that fold together."""

    frame: pd.DataFrame
    summary: str
    """Stands for them where they are folded; empty for rows that do not fold."""

    is_open: bool = True


def _parts(frame: pd.DataFrame, is_first: bool) -> list[_Part]:
    """Return a table in parts: what answers stays open, and long tables of details are folded.

    Exploratory comparisons are details, and so are tables that say it.
    """
    key, rows = frame.attrs["key"], len(frame)
    if key == "comparisons":
        is_primary = frame["family"] == "primary"
        families = [(frame[is_primary], "primary"), (frame[~is_primary], "exploratory")]
        return [
            _Part(part, f"{len(part)} {family} comparisons", family == "primary")
            for part, family in families
            if len(part)
        ]
    most = _MOST_ANSWERS if key == "answers" else _MOST_OPEN
    is_open = rows <= most and not frame.attrs["is_detail"]
    if is_open and (is_first or frame.size <= _MOST_ON_PHONE):
        return [_Part(frame, "")]
    return [_Part(frame, f"{rows} rows", is_open)]


def _inline_svg(figure: Figure) -> str:
    """Return the SVG element of a figure, with ids that no other has.

    It takes its share of a wide column; in a narrow one it has its own size, and is scrolled.
    """
    from markupsafe import escape

    text = figure.images["svg"].decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{figure.key}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{figure.key}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    label = escape(f"{figure.title}. {figure.alt} The tables hold the same numbers.")
    width = f"max({figure.share:.1%}, {96 * figure.share * WIDTH_IN:.0f}px)"
    attributes = f'role="img" aria-label="{label}" style="width: {width}"'
    return text.replace("<svg ", f"<svg {attributes} ", 1)


def _emptiness(run: Run) -> str:
    text = f"{run.path}: none of its {len(run.head.cells)} cells is finished"
    if run.errors:
        first, error = next(iter(run.errors.items()))
        reason = (error.splitlines() or [""])[0]
        text += f"; {len(run.errors)} failed, the first ({first}) with: {reason}"
    return f"{text}; layerswap run {run.study.name} runs them"


def _replace(out: Path, files: Mapping[str, bytes]) -> None:
    """Write all files to a temporary folder, then move them to their places."""
    check_results(out, files)
    if (out / "figures").is_symlink():
        raise InputError(f"{out / 'figures'}: is a link; remove it, or choose another --out")
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report.", dir=out) as fresh:
            for name, content in files.items():
                write_bytes(Path(fresh) / name, content)
            for name in files:
                (out / name).parent.mkdir(exist_ok=True)
                (Path(fresh) / name).replace(out / name)
        list_results(out, files)
