"""Writes a report in the formats that are asked for. Knows file names; not what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablations.machine.whole_files import write_bytes
from ablations.report.compose import compose
from ablations.report.formats import FORMATS
from ablations.report.formats.spreadsheet import comparisons_csv, scores_csv
from ablations.report.formats.templates import render_html, render_latex, render_markdown
from ablations.runner.records import Run
from layerswap_method.errors import InputError, nearest


def build(
    run: Run,
    formats: Sequence[str],
    out: Path,
    *,
    others: Sequence[Run] = (),
    published: bool = False,
) -> tuple[Path, ...]:
    """Write the report of `run` to the folder `out` and return the files.

    ``md``: report.md; ``html``: report.html, which needs no other file; ``latex``: tables.tex;
    ``csv``: scores.csv and comparisons.csv. Figures stand in figures/ as SVG, PNG and PDF when
    Markdown or LaTeX, which refer to them, are among the formats.

    Args:
        run: finished or not.
        formats: of `FORMATS`.
        out: made if it is not there.
        others: runs that give columns to the layout of Table 6; see `compose`.
        published: whether the paper's values stand beside the layouts that it has.

    Raises:
        InputError: for a format that there is not, a run without a finished cell, or `others`
            that asked something else.
    """
    unknown = next((each for each in formats if each not in FORMATS), None)
    if unknown is not None or not formats:
        told = "named" if unknown is None else f"{unknown!r}{nearest(unknown, FORMATS)}"
        raise InputError(f"no format {told}; known are {', '.join(FORMATS)}")
    draw = bool({"md", "latex", "html"} & set(formats))
    report, comparisons = compose(run, others, published=published, draw=draw)
    files: dict[str, bytes | str] = {}
    if {"md", "latex"} & set(formats):
        for figure in report.figures:
            files |= {f"figures/{figure.key}.{kind}": i for kind, i in figure.images.items()}
    if "md" in formats:
        files["report.md"] = render_markdown(report)
    if "html" in formats:
        files["report.html"] = render_html(report)
    if "latex" in formats:
        files["tables.tex"] = render_latex(report)
    if "csv" in formats:
        files["scores.csv"] = scores_csv(run)
        files["comparisons.csv"] = comparisons_csv(comparisons)
    for name, content in files.items():
        write_bytes(out / name, content.encode() if isinstance(content, str) else content)
    return tuple(out / name for name in files)
