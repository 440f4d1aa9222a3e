"""`layerswap report`: options and what was written. Computes and draws nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, say_answer, watched
from ablations.cli.options import folder_option
from ablations.machine.progress import Step, tell
from ablations.report.formats import FORMATS
from layerswap_method.errors import InputError


def _formats(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    """Return the formats that `value` names, joined by commas, each once."""
    return tuple(dict.fromkeys(each.strip().lower() for each in value.split(",") if each.strip()))


@click.command(short_help="Write the report of a run and print its bottom line.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("others", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option(
    "--format",
    "formats",
    callback=_formats,
    default=",".join(FORMATS),
    metavar="LIST",
    show_default=True,
    help="What to write, joined by commas.",
)
@folder_option("--out", "Folder to write to.  [default: RUN/report]")
@click.option(
    "--published",
    is_flag=True,
    help="Show the paper's values beside ours, in tables of their own.",
)
def report(
    run: Path,
    others: tuple[Path, ...],
    formats: tuple[str, ...],
    out: Path | None,
    published: bool,
) -> None:
    """Write tables, figures and tests of a run, and print its bottom line.

    RUN is a folder that `layerswap run` wrote, finished or not.
    Cells without a result are marked as gaps. Further RUNs that asked the same, with several
    experts a role in their recipes, stand beside it in the layout of the paper's Table 6
    (souping). Figures need matplotlib: pip install 'layerswap[plot]'. Files of an earlier report
    that this one does not have are removed; other files in the folder stay.
    """
    with watched("loading the libraries"):
        from ablations.report.bottom_line import as_text
        from ablations.report.writer import build
        from ablations.runner.records import load_run

        _warn_without_figures(formats)
        tell(Step("reading the records"))
        for path in (run, *others):
            _check_place(path)
        first, *more = (load_run(path) for path in (run, *others))
        folder = out or run / "report"
        tell(Step("computing tables, tests and figures"))
        written = build(first, formats, folder, others=more, published=published)
    for path in written.files:
        if path.parent == folder:
            click.echo(path)
    click.echo()
    found = written.report
    say_answer(as_text(found.question, found.problems, [*found.bottom_line, *found.merges]))


def _check_place(path: Path) -> None:
    """Name the folder that `layerswap run` made, for who gives the study's name."""
    from ablations.runner.records import read_run_file
    from ablations.runner.run import default_out

    near = default_out(str(path))
    if read_run_file(path) is None and read_run_file(near) is not None:
        raise InputError(f"{path} is not a run folder; did you mean {near}?")


def _warn_without_figures(formats: tuple[str, ...]) -> None:
    from ablations.drawing.canvas import HINT, can_draw

    if formats != ("csv",) and not can_draw():
        say(f"Warning: no figures: {HINT}", err=True)
