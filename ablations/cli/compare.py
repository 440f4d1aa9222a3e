"""`layerswap compare`: options and the table."""

from __future__ import annotations

import click

from ablations.cli.log import watched
from ablations.cli.options import Names


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL MODEL...")
@click.option(
    "--tasks",
    type=Names(),
    default=(),
    metavar="LIST",
    help="Names joined by commas: compare these only.  [default: all]",
)
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
