"""`layerswap card`: options and what was written."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, watched
from ablations.cli.options import FOLDER, Names


@click.command(short_help="Complete the model card of a merged folder.")
@click.argument("model", type=FOLDER)
@click.option(
    "--results",
    type=FOLDER,
    metavar="RUN",
    help="Run folder with the model's scores (layerswap evaluate, or layerswap run and --cell).",
)
@click.option("--cell", metavar="LABEL", help="Cell of the run that merges the same model.")
@click.option(
    "--languages",
    type=Names(),
    default=(),
    help="Codes, such as en,sw.  [default: the recipe's]",
)
@click.option("--license", metavar="ID", help="Of the merge.  [default: the merged models']")
@click.option(
    "--benchmark",
    "benchmarks",
    multiple=True,
    metavar="TASK=DATASET[:ID]",
    help="Write this task's score to .eval_results for a benchmark of the hub. "
    "Can be given several times.",
)
@click.option("--offline", is_flag=True, help="Do not ask the hub for licences.")
def card(
    model: Path,
    results: Path | None,
    cell: str | None,
    languages: tuple[str, ...],
    license: str | None,
    benchmarks: tuple[str, ...],
    offline: bool,
) -> None:
    """Complete the model card of the merged folder MODEL, for the hub.

    mergekit's card is kept. This adds the relation to the base, languages, licence, the layer plan
    with a picture, the recipe, and with --results the scores with intervals and protocol.
    """
    from ablations.hub.card import CardOptions, local_paths, write_card

    options = CardOptions(
        results=results,
        cell=cell,
        languages=languages,
        license=license,
        benchmarks=benchmarks,
        hub=not offline,
    )
    with watched("writing the card"):
        for path in write_card(model, options):
            say(str(path))
    if local := local_paths(model):
        click.echo(f"note: the recipe names folders that others lack: {', '.join(local)}", err=True)
