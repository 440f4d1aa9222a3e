"""`layerswap plan`: options and output."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say


@click.command(short_help="Draw which expert supplies each layer of a recipe.")
@click.argument("recipe")
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Depth of the models; without it, read from a config, here or on the hub.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a picture; FILE ends in .svg, .png or .pdf.",
)
def plan(recipe: str, layers: int | None, out: Path | None) -> None:
    """Draw which expert supplies each layer of RECIPE, and everything outside the layers.

    RECIPE is a file, the name of a shipped recipe, or the folder of a finished layer_swap merge.
    Only configs are read, never weights.
    """
    from ablations.gallery.plan import describe, supply_of

    supply = supply_of(recipe, layers)
    for line in describe(supply):
        say(line)
    if out is not None:
        from ablations.gallery.picture import draw

        draw(supply, recipe, out)
        click.echo(out)
