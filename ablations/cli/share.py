"""`layerswap share`: options and output. Packs nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import watched


@click.command(short_help="Pack a run into one file.")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The bundle, ending in .zip.  [default: RUN.zip]",
)
def share(run: Path, out: Path | None) -> None:
    """Pack the run folder RUN into one file: study, recipe, scores, answers and versions.

    Elsewhere, layerswap report FILE shows it without running anything, and layerswap run FILE runs
    it again.
    """
    with watched("packing"):
        from ablations.hub.bundle import pack

        folder = run.resolve()
        lines = list(pack(run, out or folder.with_name(f"{folder.name}.zip")))
    for line in lines:
        click.echo(line)
