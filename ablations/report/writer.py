"""Writes a report in the formats that are asked for. Knows file names; not what is in them."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.machine.whole_files import (
    check_place,
    told_if_unwritable,
    write_bytes,
    write_text,
)
from ablations.report.compose import compose
from ablations.report.document import Report
from ablations.report.formats import FORMATS
from ablations.report.formats.spreadsheet import comparisons_csv, scores_csv
from ablations.report.formats.templates import render_html, render_latex, render_markdown
from ablations.runner.records import Run
from layerswap_method.errors import InputError, nearest, with_valid

_NAME = re.compile(r"(figures/)?[a-z0-9_-]+\.[a-z]+")
MANIFEST = ".report.json"
"""Lists the files of a report in its folder, so that the next one removes no other."""


@dataclass(frozen=True)
class Written:
    """A report on disk."""

    files: tuple[Path, ...]
    """What was written, the files to read first."""

    report: Report
    """What is in them."""


def build(
    run: Run,
    formats: Sequence[str],
    out: Path,
    *,
    others: Sequence[Run] = (),
    published: bool = False,
) -> Written:
    """Write the report of `run` to the folder `out`.

    ``md``: report.md; ``html``: report.html, which needs no other file; ``latex``: tables.tex;
    ``csv``: scores.csv and comparisons.csv. Figures stand in figures/ as SVG, PNG and PDF when
    Markdown or LaTeX, which refer to them, are among the formats. Files of an earlier report that
    this one does not have are removed; other files in the folder stay.

    Args:
        run: finished or not.
        formats: of `FORMATS`.
        out: made if it is not there.
        others: runs that give columns to the layout of Table 6; see `compose`.
        published: whether the paper's values stand beside the layouts that it has.

    Raises:
        InputError: for a format that there is not, a run without a finished cell, or `others`
            that asked something else.
        LayerSwapError: where the folder cannot be written; an earlier report then stays.
    """
    unknown = next((each for each in formats if each not in FORMATS), None)
    if unknown is not None or not formats:
        told = "named" if unknown is None else f"{unknown!r}{nearest(unknown, FORMATS)}"
        raise InputError(with_valid(f"no format {told}", FORMATS))
    draw = bool({"md", "latex", "html"} & set(formats))
    report, comparisons = compose(run, others, published=published, draw=draw)
    files: dict[str, bytes | str] = {}
    if "html" in formats:
        files["report.html"] = render_html(report)
    if "md" in formats:
        files["report.md"] = render_markdown(report)
    if "latex" in formats:
        files["tables.tex"] = render_latex(report)
    if "csv" in formats:
        files["scores.csv"] = scores_csv(run)
        files["comparisons.csv"] = comparisons_csv(comparisons)
    if {"md", "latex"} & set(formats):
        for figure in report.all_figures:
            files |= {f"figures/{figure.key}.{kind}": i for kind, i in figure.images.items()}
    _replace(out, {n: c.encode() if isinstance(c, str) else c for n, c in files.items()})
    return Written(tuple(out / name for name in files), report)


def _replace(out: Path, files: Mapping[str, bytes]) -> None:
    """Write all files beside their places, then move them there, and remove those of before."""
    check_place(out / MANIFEST)
    with told_if_unwritable(out):
        out.mkdir(parents=True, exist_ok=True)
        old = _listed(out)
        with tempfile.TemporaryDirectory(prefix=".report.", dir=out) as fresh:
            for name, content in files.items():
                write_bytes(Path(fresh) / name, content)
            # An interrupted report is removed by the next one.
            _list(out, [*old, *files])
            for name in files:
                (out / name).parent.mkdir(exist_ok=True)
                (Path(fresh) / name).replace(out / name)
        for name in old:
            if name not in files:
                (out / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in it
            (out / "figures").rmdir()
        _list(out, files)


def _list(out: Path, names: Iterable[str]) -> None:
    write_text(out / MANIFEST, json.dumps(sorted(set(names)), indent=1) + "\n")


def _listed(out: Path) -> list[str]:
    """Return the files of an earlier report, as it listed them; no path out of the folder."""
    try:
        found = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    names = found if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and _NAME.fullmatch(name)]
