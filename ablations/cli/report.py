"""Commands on results: `report` and `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, watched
from ablations.cli.options import FILE, folder_option, names_option
from ablations.machine.progress import Step, tell


@click.command(short_help="Write the report of a run and print its answer.")
@click.argument("run", type=FILE)
@names_option("--format", "What to write, joined by commas.", default="html,md,latex,csv")
@folder_option("--out", "Folder to write to.  [default: RUN/report]")
def report(run: Path, format: tuple[str, ...], out: Path | None) -> None:
    """Write tables, figures and tests of a run, and print its answer.

    RUN is a folder that `layerswap run` wrote, finished or not.
    What has no result is marked. The observations, one row an item, and the comparisons are
    written as parquet, too. Figures need matplotlib: pip install 'layerswap[plot]'.
    Other files in the folder stay.
    """
    with watched("loading the libraries"):
        from ablations.report.observations import reading
        from ablations.report.write import answer_text, make_report, write_report
        from ablations.runner.records import load_run

        with reading():
            tell(Step("reading the records"))
            found = load_run(run)
            folder = out or run / "report"
            tell(Step("computing tables, tests and figures"))
            result = make_report(found, draw=format != ("csv",))
        files = write_report(result, format, folder)
    for path in files:
        if path.parent == folder:
            click.echo(path)
    say(f"\n{answer_text(result)}")


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL MODEL...")
@names_option("--tasks", "Names joined by commas: compare these only.  [default: all]")
def compare(models: tuple[str, ...], tasks: tuple[str, ...]) -> None:
    """Test two or more evaluated models against each other.

    MODEL is a folder that `layerswap evaluate` wrote, or a model or cell of a study: RUN:MODEL,
    with the folder that `layerswap run` wrote and the name in its report, such as
    'runs/layer_count:soup'.

    All models must have answered the same items with the same prompts. The statistics and the
    table are those of `layerswap report`; p is corrected for all comparisons of the call. The share
    of answers in the right language is compared as well.
    """
    with watched("comparing item by item"):
        from ablations.report.across import compare_models
        from ablations.report.observations import reading

        with reading():
            text = compare_models(models, tasks)
    click.echo(text)
