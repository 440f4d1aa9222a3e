"""`layerswap divergence`: how far experts moved."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, show_log, watched
from ablations.cli.options import folder_option


@click.command(short_help="Measure how far experts moved from their base.")
@click.argument("experts", nargs=-1, required=True, metavar="EXPERT...")
@click.option("--base", required=True, metavar="MODEL", help="What they were fine-tuned from.")
@click.option(
    "--text",
    "texts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='Held-out text for the drift of the hidden states: lines of {"text": "..."}. A run of '
    "layerswap train leaves such a file, held_out.jsonl.",
)
@folder_option("--out", "Folder for the results.", "runs/divergence")
def divergence(experts: tuple[str, ...], base: str, texts: Path | None, out: Path) -> None:
    """Measure how far experts are from their base.

    An EXPERT is a folder, a hub id or base+adapter. Prints the norm of the change of the weights,
    relative to the base's, and the drift of the hidden states. layerswap delta compares experts.
    """
    show_log()
    with watched():
        from ablations.train.divergence import divergence as measure

        for line in measure(experts, base, texts=texts, out=out):
            say(line)
