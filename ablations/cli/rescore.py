"""`layerswap rescore`: options and what is told. Scores nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import allow_code_option, code_isolation_option
from layerswap_method.errors import LayerSwapError

if TYPE_CHECKING:
    from ablations.sandbox import Isolation


@click.command(short_help="Score the stored answers of a run again, without a model.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where the tasks' data is now, if it is no longer where the run found it.",
)
@click.option(
    "--include-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder of your own task files. They are programs, so RUN does not choose it.",
)
@allow_code_option
@code_isolation_option
def rescore(
    run: Path,
    data_dir: Path | None,
    include_path: Path | None,
    allow_code_execution: bool,
    code_isolation: Isolation | None,
) -> None:
    """Apply the current filters and metrics to the answers of the run folder RUN.

    Nothing is generated, and no model is loaded. Scores that change get records of their own
    beside the old ones; layerswap report shows which scores are new and what they were, and
    layerswap run goes on with them. A task whose prompts, items or generation settings have
    changed cannot be scored again. Tasks of your own need --include-path, and MBPP, whose stored
    programs are run again, --allow-code-execution.
    """
    show_log()
    with watched():
        from ablations.runner.rescore import RescoreOptions, rescore_run

        isolation = (code_isolation or "bwrap") if allow_code_execution else None
        folder = None if include_path is None else include_path.absolute()
        done = rescore_run(run, RescoreOptions(data_dir, folder, isolation))
    say(done.report())
    if done.failed:
        raise LayerSwapError("not every record could be scored again")
