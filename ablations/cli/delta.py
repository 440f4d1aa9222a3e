"""`layerswap delta`: where fine-tuning changed a model."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, watched
from ablations.cli.options import FiniteRange, folder_option


@click.command()
@click.argument("experts", nargs=-1, metavar="[EXPERT]...")
@click.option("--base", metavar="MODEL", help="The model from which the experts were fine-tuned.")
@click.option(
    "--threshold",
    type=FiniteRange(min=0),
    metavar="CHANGE",
    help="Count rows with a mean absolute change above this.  [default: what an eighth of the rows "
    "is above]",
)
@folder_option("--out", "Folder to write to.", "runs/delta")
@click.option(
    "--reference",
    metavar="NAME",
    help="Draw a published expert of the paper, such as 'Swahili expert #1', alone or beside an "
    "EXPERT.",
)
def delta(
    experts: tuple[str, ...],
    base: str | None,
    threshold: float | None,
    out: Path,
    reference: str | None,
) -> None:
    """Show where fine-tuning changed a model, layer by layer.

    An EXPERT is a folder, a hub id or base+adapter. Prints each layer's share of the change;
    writes delta.csv, a row a tensor, and a heatmap as in the paper's Figure 2. Figures need
    matplotlib: pip install 'layerswap[plot]'.
    """
    options = {"threshold": threshold, "reference": reference}
    with watched():
        from ablations.delta.analysis import delta as analyse

        for line in analyse(experts, base, out=out, **options):  # type: ignore[arg-type]
            say(line, err=line.startswith("Warning:"))
