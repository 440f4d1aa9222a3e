"""`layerswap run`: options of a run. Does nothing itself."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ablations.cli.log import show_log
from ablations.cli.options import (
    allow_code_option,
    backend_option,
    code_isolation_option,
    data_dir_option,
    folder_option,
)


@click.command()
@click.argument("study")
@click.option(
    "--experts",
    metavar="FILE",
    help="Experts file (name to folder, hub id or base+adapter), or a shipped one such as pocket. "
    "Default: the one the study names.",
)
@folder_option(
    "--out",
    "Run folder.  [default: runs/STUDY, or runs/STUDY-EXPERTS with other experts than the "
    "study's own]",
)
@backend_option
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes here, or a Ray cluster that is up: pip install 'layerswap[ray]'.",
)
@click.option(
    "--address", default="auto", show_default=True, help="Of the Ray cluster (--executor ray)."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Engines at once: 1 unless given; with --executor ray as many as there is room for.",
)
@click.option("--dry-run", is_flag=True, help="List cells, layers and cost; run nothing.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME=VALUE",
    help="Cells to run, such as kind=recipe. Several times: values of a name are alternatives.",
)
@click.option(
    "--materialize", is_flag=True, help="Write every merge to disk by mergekit-yaml first."
)
@data_dir_option
@allow_code_option
@code_isolation_option
def run(study: str, dry_run: bool, **options: Any) -> None:
    """Merge and evaluate every cell of STUDY: a file, or a shipped study such as layer_count.

    STUDY may be a bundle of `layerswap share`: it is run again, with its experts or --experts.

    What is finished is not done again; a cell that fails does not stop the others.
    """
    from ablations.hub.bundle import STUDY, is_bundle, unpacked
    from ablations.runner import run as runner

    chosen = runner.RunOptions(**options)
    with ExitStack() as opened:
        if is_bundle(study):
            study = str(opened.enter_context(unpacked(Path(study))) / STUDY)
        if dry_run:
            click.echo(runner.dry_run(study, chosen))
            return
        show_log(logging.WARNING if sys.stderr.isatty() else logging.INFO)
        result = runner.run_study(study, chosen)
    click.echo(result.report())
    if result.summary.failed:
        sys.exit(1)
