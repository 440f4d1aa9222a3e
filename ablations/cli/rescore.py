"""`layerswap rescore`: options and what is told. Scores nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import show_log, watched
from layerswap_method.errors import LayerSwapError


@click.command(short_help="Score the stored answers of a run again, without a model.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the tasks' data is now, if it is no longer where the run found it.",
)
def rescore(run: Path, data_dir: Path | None) -> None:
    """Apply the current filters and metrics to the answers of the run folder RUN.

    Nothing is generated, and no model is loaded. Scores that change get records of their own
    beside the old ones; layerswap report shows which scores are new and what they were, and
    layerswap run goes on with them. A task whose prompts, items or generation settings have
    changed cannot be scored again.
    """
    show_log()
    with watched():
        from ablations.runner.rescore import rescore_run

        done = rescore_run(run, data_dir)
    click.echo(done.report())
    if done.failed:
        raise LayerSwapError("not every record could be scored again")
