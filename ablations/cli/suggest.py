"""`layerswap suggest`: options and what is told. Computes and writes nothing itself."""

from __future__ import annotations

from pathlib import Path

import click

from ablations.cli.log import say, watched
from ablations.cli.options import FiniteRange


@click.command(short_help="Propose which layers to swap.")
@click.option(
    "--task",
    required=True,
    multiple=True,
    metavar="MODEL",
    help="Task expert. Give the option several times to average several.",
)
@click.option(
    "--language",
    required=True,
    multiple=True,
    metavar="MODEL",
    help="Language expert; several times as above.",
)
@click.option(
    "--base",
    required=True,
    metavar="MODEL",
    help="The model from which the experts were fine-tuned.",
)
@click.option(
    "--threshold",
    type=FiniteRange(min=0),
    default=0.001,
    show_default=True,
    help="A layer is a tie up to this difference of shares (arXiv 2601.22620).",
)
@click.option(
    "--write",
    "recipe",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a recipe for mergekit-yaml.",
)
@click.option("--force", is_flag=True, help="Replace the file of --write if it exists.")
def suggest(
    task: tuple[str, ...],
    language: tuple[str, ...],
    base: str,
    threshold: float,
    recipe: Path | None,
    force: bool,
) -> None:
    """Propose which layers to swap, from what each expert changed.

    A MODEL is a folder, a hub id or base+adapter. Prints each layer's share of both experts'
    changes, and from them the number of bottom layers (b) and top layers (u) to swap and of the
    averaged layers beside them (t_b, t_u).
    """
    with watched():
        from ablations.delta.suggest import suggest as propose

        for line in propose(task, language, base, threshold=threshold, recipe=recipe, force=force):
            say(line)
